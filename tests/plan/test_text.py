"""The syntax: what is read, what is refused and how the refusal reads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.core.term import write_term, write_value
from shoal.plan.text import MAX_CHARACTERS, MAX_TERMS, TermCall, parse


def test_reads_names_and_arguments() -> None:
    assert parse("one, two(), three(1, -2.5, ring, key=1e-3)") == [
        TermCall("one"),
        TermCall("two"),
        TermCall("three", (1, -2.5, "ring"), (("key", 1e-3),)),
    ]


def test_reads_ratios() -> None:
    assert parse("balance(2:1:1), a(1:2, k=3:4)") == [
        TermCall("balance", ("2:1:1",)),
        TermCall("a", ("1:2",), (("k", "3:4"),)),
    ]


@pytest.mark.parametrize("word", ["end", "name", "int", "space"])
def test_words_are_not_mistaken_for_kinds_of_tokens(word: str) -> None:
    assert parse(f"{word}, {word}({word}={word})") == [TermCall(word), TermCall(word, (), ((word, word),))]
    with pytest.raises(UsageError, match="expected ',' between terms"):
        parse(f"one {word}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the plan is empty; write 'allreduce, every(1)' or leave --plan out"),
        (" \n\t", "the plan is empty; write 'allreduce, every(1)' or leave --plan out"),
        ("a, b(1", "unbalanced parenthesis: '(' at position 5 is never closed; add ')'"),
        ("a(1,", "unbalanced parenthesis: '(' at position 2 is never closed; add ')'"),
        ("a(1), b)", "unbalanced parenthesis: ')' at position 8 closes nothing; remove it"),
        ("a(k=1, 2)", "plain argument '2' at position 8 follows a named one; write plain arguments first"),
        ("a((1))", "expected a value, found '(' at position 3; write a number or a word"),
        ("a(1,)", "expected a value, found ')' at position 5; write a number or a word"),
        ("a(1e999)", "number '1e999' at position 3 is too large; write a smaller one"),
        (
            "a(9223372036854775808)",
            "number '9223372036854775808' at position 3 is too large; write a smaller one",
        ),
        ("a;b", "unexpected ';' at position 2 of the plan; remove it"),
        ("a\u2028b", "unexpected '\\u2028' at position 2 of the plan; remove it"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert str(refused.value) == message


@pytest.mark.parametrize("text", ["a,", ",a", "1", "a b", "a(1)(2)", "a(x 1)", "a(=1)", "a(k=)", "a(1=2)", "=", "2:1"])
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        parse(text)


def test_limits_are_exact() -> None:
    assert len(parse(",".join(["a"] * MAX_TERMS))) == MAX_TERMS
    assert parse("a".ljust(MAX_CHARACTERS)) == [TermCall("a")]
    with pytest.raises(UsageError, match=f"has {MAX_TERMS + 1} terms"):
        parse(",".join(["a"] * (MAX_TERMS + 1)))
    with pytest.raises(UsageError, match=f"has {MAX_CHARACTERS + 1} characters"):
        parse("a".ljust(MAX_CHARACTERS + 1))


def test_one_argument_is_written_plain_and_several_by_name() -> None:
    assert write_term("a", {}) == "a"
    assert write_term("a", {"k": 0.01}) == "a(0.01)"
    assert write_term("a", {"k": 2, "how": "ring"}) == "a(k=2, how=ring)"


@settings(deadline=None)
@given(st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_as_written(number: float) -> None:
    (call,) = parse(f"a({write_value(number)})")
    assert call.plain == (number,)
    assert type(call.plain[0]) is type(number)
