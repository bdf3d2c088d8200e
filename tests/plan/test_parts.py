"""A plan for each part of a model: its text, its files, which parameters a pattern takes, and what is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.load import parse_toml
from shoal.plan.parts import check_all_used, match_parts
from shoal.plan.rules import check
from shoal.plan.switching import check_switch

NAMES = ["embeddings.word.weight", "embeddings.norm.bias", "head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (
            "embeddings.*: allreduce, topk(0.01); *: allreduce, fp16",
            "embeddings.*: allreduce, every(1), topk(0.01); *: allreduce, every(1), fp16",
        ),
        (" balance( 2:1 ) ;a:fp16;\n*: horovod", "balance(2:1); a: allreduce, every(1), fp16; *: allreduce, every(1)"),
        ("*: allreduce(edges=0-1:1-2)", "*: allreduce(edges=0-1:1-2), every(1)"),
    ],
)
def test_the_text_of_parts_reads_back_the_same(text: str, canonical: str) -> None:
    plan = Plan.parse(text)
    assert str(plan) == canonical
    assert Plan.parse(canonical) == plan
    assert hash(Plan.parse(canonical)) == hash(plan)


@given(
    st.lists(st.sampled_from(["a", "b.*", "?", "[ab]", "*", ";", ":", "fp16", "int8", ",", "balance(2:1)", "(", " "]))
)
def test_any_text_is_read_back_or_refused_on_one_line(pieces: list[str]) -> None:
    text = "".join(pieces)
    said = read_or_refused(text)
    assert len(said.splitlines()) == 1
    assert read_or_refused(said) == said or said == refusal(text)


def read_or_refused(text: str) -> str:
    try:
        return str(Plan.parse(text))
    except UsageError as error:
        return str(error)


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as refused:
        Plan.parse(text)
    return str(refused.value)


def test_a_file_holds_the_same() -> None:
    text = '[[parts]]\npattern = "embeddings.*"\nwire = ["topk(0.01)"]\n[[parts]]\npattern = "*"\nwire = ["fp16"]\n'
    assert parse_toml(text) == Plan.parse("embeddings.*: topk(0.01); *: fp16")
    assert parse_toml('balance = "balance(auto)"\n' + text).balance.shares == "auto"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("parts = 1", "parts must be tables; write [[parts]] above the pattern of each"),
        ("[[parts]]\nwire = []", 'every one of parts has a pattern; write pattern = "embeddings.*"'),
        ('[[parts]]\npattern = "a"\nwrie = []', "part 'a': unknown key 'wrie'; did you mean 'wire'?"),
    ],
)
def test_files_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        parse_toml(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: fp16; int8", "'int8' names no parameters; write '*: int8'"),
        ("a: ; *: int8", "part 1 of the plan, 'a:', has no terms"),
        ("a b: fp16", "pattern 'a b': letters, digits and . _ - / stand for themselves"),
        ("a: fp16; a: int8", "pattern 'a' stands twice in the plan, and the first takes all; keep one"),
        ("a: tpok(0.1); *: fp16", "part 'a': unknown term 'tpok'; did you mean 'topk'?"),
        ("fp16; *: int8", "'allreduce, every(1), fp16' stands before the parts, which all have a plan"),
        ("a: balance(auto); *: fp16", "'balance(auto)' in part 'a' is of the whole model; begin with 'balance(auto);'"),
        (";".join(f"a{n}: fp16" for n in range(17)), "the plan has 17 parts; at most 16 are read"),
    ],
)
def test_texts_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Plan.parse(text)


def test_the_first_pattern_that_matches_takes_a_parameter() -> None:
    assert match_parts(["*.bias", "embeddings.*", "*"], NAMES) == [1, 0, 2, 0]


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (
            ["x.*"],
            "(x.*) matches embeddings.word.weight, embeddings.norm.bias, head.weight and 1 more: "
            "4 of 4 parameters have no part; end the plan with '*: allreduce'",
        ),
        (["embedding.*", "*"], "pattern 'embedding.*' matches no parameter; the nearest are embeddings."),
        (["*", "head.*"], "pattern 'head.*' takes no parameter, because '*' stands before it"),
    ],
)
def test_patterns_that_do_not_fit_the_model_are_refused(patterns: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check_all_used(patterns, NAMES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: server; *: fp16", "'every(1)' with 'server' in part 'a': a part on servers pushes and pulls by itself"),
        ("a: alone; *: fp16", "'alone' in part 'a': parts are exchanged together"),
        ("a: local(8); *: fp16", "in part 'a': samples are committed when all parts agree"),
        ("a: order(needed); *: fp16", "'order(needed)' in part 'a' and 'order(ready)' in part '*'"),
        ("a: halp(8); *: fp16", "'halp"),
        ("a: wire(auto); *: fp16", "'wire(auto)' in part 'a' measures whole steps"),
        ("a: meet(gather); *: fp16", "part 'a': 'meet(gather)' goes around a codec and the plan has none"),
        ("balance(1:1); *: fp16", "'balance(1:1)' has 2 shares for 3 workers"),
        ("a: allreduce(edges=0-1:1-2:2-3); *: fp16", "part 'a': 'allreduce(edges=0-1:1-2:2-3)' is a tree of 4"),
    ],
)
def test_rules_hold_in_every_part_and_between_them(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check(Plan.parse(text), 3)


def test_parts_may_be_switched_to_and_from() -> None:
    parted, plain = Plan.parse("a: topk(0.1); *: fp16"), Plan()
    assert check_switch(parted, plain, 2) == check_switch(plain, parted, 2) == []
