"""The syntax of a plan, and nothing of its meaning.

plan  = term ("," term)*
term  = NAME [ "(" [ item ("," item)* ] ")" ]
item  = value | NAME "=" value            plain items come before named ones
value = INT | FLOAT | NAME | RATIO | EDGES   a ratio is whole numbers with colons between them: 2:1:1
                                             edges are pairs with colons between them: 0-1:1-2

White space means nothing. Positions in messages count characters from 1.
"""

import re
import sys

import msgspec

from shoal.core.errors import UsageError
from shoal.core.suggest import shown

# Bounds what a text of a stranger (a page's form, a machine that joins) may cost to read.
MAX_CHARACTERS = 1000
MAX_TERMS = 32
# What msgspec, torch and TOML hold.
MAX_INTEGER = 2**63 - 1

Value = int | float | str

_TOKEN = re.compile(
    r"(?P<space>\s+)"
    # Longer forms first: an edge or a ratio begins as a number does.
    r"|(?P<edges>\d+-\d+(?::\d+-\d+)*)"
    r"|(?P<ratio>\d+(?::\d+)+)"
    r"|(?P<float>[+-]?(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?\d+[eE][+-]?\d+)"
    r"|(?P<name>\d*[A-Za-z_][A-Za-z0-9_-]*)"  # before numbers: 1bit-sgd is a name
    r"|(?P<int>[+-]?\d+)"
    r"|(?P<mark>[(),=])",
    # ASCII: \d would also match digits of other scripts.
    re.ASCII,
)


class TermCall(msgspec.Struct, frozen=True):
    """One term as written: its name, its plain arguments, its named ones (a name may stand there twice)."""

    name: str
    plain: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()


class _PlanToken(msgspec.Struct, frozen=True):
    kind: str
    """int, float, name, ratio, edges, end, or the mark itself."""
    text: str
    position: int

    def __str__(self) -> str:
        return f"{shown(self.text)} at position {self.position}" if self.text else "the end of the text"


def parse(text: str) -> list[TermCall]:
    """Return the terms of `text` in the order they are written."""
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"the plan has {len(text)} characters; at most {MAX_CHARACTERS} are read, so shorten it")
    if not text.strip():
        raise UsageError("the plan is empty; write 'allreduce, every(1)' or leave --plan out")
    calls = _PlanParser(_tokens(text)).plan()
    if len(calls) > MAX_TERMS:
        raise UsageError(f"the plan has {len(calls)} terms; at most {MAX_TERMS} are read, so shorten it")
    return calls


def _tokens(text: str) -> list[_PlanToken]:
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise UsageError(f"unexpected {shown(text[at])} at position {at + 1} of the plan; remove it")
        if found.lastgroup != "space":
            kind = found.group() if found.lastgroup == "mark" else str(found.lastgroup)
            tokens.append(_PlanToken(kind, found.group(), at + 1))
        at = found.end()
    # An end of its own, so that every error can name a place.
    return [*tokens, _PlanToken("end", "", len(text) + 1)]


class _PlanParser:
    """Recursive descent over the tokens; one method per line of the grammar."""

    def __init__(self, tokens: list[_PlanToken]) -> None:
        self._tokens = tokens
        self._at = 0

    def plan(self) -> list[TermCall]:
        calls = [self._term()]
        while not self._take("end"):
            # Said by itself, because "expected a comma" would not help to find it.
            if self._here.kind == ")":
                raise UsageError(f"unbalanced parenthesis: {self._here} closes nothing; remove it")
            self._expect(",", "',' between terms")
            calls.append(self._term())
        return calls

    def _term(self) -> TermCall:
        name = self._expect("name", "a term")
        opened = self._take("(")
        if opened is None:
            return TermCall(name.text)
        plain: list[Value] = []
        named: list[tuple[str, Value]] = []
        while not self._take(")"):
            if plain or named:
                self._inside(opened)
                self._expect(",", "',' or ')'")
            self._inside(opened)
            self._item(plain, named)
        return TermCall(name.text, tuple(plain), tuple(named))

    def _item(self, plain: list[Value], named: list[tuple[str, Value]]) -> None:
        first = self._here
        value = self._value()
        if first.kind == "name" and self._take("="):
            named.append((first.text, self._value()))
        elif named:
            raise UsageError(f"plain argument {first} follows a named one; write plain arguments first")
        else:
            plain.append(value)

    def _value(self) -> Value:
        token = self._here
        if token.kind not in ("int", "float", "name", "ratio", "edges"):
            raise UsageError(f"expected a value, found {token}; write a number or a word")
        self._at += 1
        return _value_of(token)

    def _inside(self, opened: _PlanToken) -> None:
        if self._here.kind == "end":
            raise UsageError(f"unbalanced parenthesis: {opened} is never closed; add ')'")

    def _take(self, what: str) -> _PlanToken | None:
        """Consume and return the next token if it is of kind `what`; else return None."""
        token = self._here
        if token.kind != what:
            return None
        self._at += 1
        return token

    def _expect(self, what: str, words: str) -> _PlanToken:
        token = self._take(what)
        if token is None:
            raise UsageError(f"expected {words}, found {self._here}; write terms as name or name(value, key=value)")
        return token

    @property
    def _here(self) -> _PlanToken:
        # The end stays the end, however often it is asked for.
        return self._tokens[min(self._at, len(self._tokens) - 1)]


def _value_of(token: _PlanToken) -> Value:
    if token.kind in ("name", "ratio", "edges"):
        return token.text
    value = int(token.text) if token.kind == "int" else float(token.text)
    if abs(value) > (MAX_INTEGER if token.kind == "int" else sys.float_info.max):
        raise UsageError(f"number {token} is too large; write a smaller one")
    return value
