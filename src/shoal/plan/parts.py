"""Parts of a model: patterns on names of parameters, and which parameter each takes.

    embeddings.*: allreduce, topk(0.01); *: allreduce, fp16
    balance(auto); embeddings.*: topk(0.01); *: fp16         what holds for the whole model stands first

A pattern is one of `fnmatch`: `*` any letters, `?` one, `[ab]` one of them. Names are those of `named_parameters()`;
where one `join` has several models, each has its number and a dot before them (`0.head.weight`). The first pattern that
matches takes a parameter, and every pattern is matched in each `join` of a script.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from shoal.core.errors import UsageError
from shoal.core.suggest import nearest, shown

MOST_PARTS = 16
LISTED = 3
"""The most names listed in a message."""
# Without commas, colons, semicolons and brackets, which a plan's text has for itself.
_PATTERN = re.compile(r"[A-Za-z0-9_.*?\[\]!/-]{1,200}\Z", re.ASCII)


class PartText(NamedTuple):
    """One part of a plan's text, between semicolons."""

    pattern: str
    """Pattern on parameter names; empty if the terms hold for the whole model."""
    terms: str


def split_parts(text: str) -> list[PartText] | None:
    """Return the parts of a plan's text; None if it has none, so that all terms hold for the whole model."""
    sections = text.split(";")
    found = [_section(section) for section in sections]
    if len(found) == 1 and not found[0].pattern:
        return None
    for number, part in enumerate(found):
        if not part.terms.strip():
            raise UsageError(
                f"part {number + 1} of the plan, {shown(sections[number].strip())}, has no terms; write some"
            )
        if not part.pattern and (number or len(found) == 1):
            terms = part.terms.strip()
            raise UsageError(f"{shown(terms)} names no parameters; write {shown(f'*: {terms}')}")
    return found


def _section(text: str) -> PartText:
    head, colon, rest = text.partition(":")
    # a colon in brackets belongs to a ratio or to edges
    return PartText(head.strip(), rest) if colon and "(" not in head else PartText("", text)


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise UsageError for a pattern that no parameter name can match, or that is written twice."""
    if len(patterns) > MOST_PARTS:
        raise UsageError(f"the plan has {len(patterns)} parts; at most {MOST_PARTS} are read, so join some patterns")
    for number, pattern in enumerate(patterns):
        if not _PATTERN.match(pattern):
            raise UsageError(
                f"pattern {shown(pattern)}: letters, digits and . _ - / stand for themselves, * ? [ ] ! match several; "
                "write embeddings.*"
            )
        if pattern in patterns[:number]:
            raise UsageError(f"pattern {shown(pattern)} stands twice in the plan, and the first takes all; keep one")


def match_parts(patterns: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the number of the part of each name; raise UsageError for names that no pattern matches."""
    # fnmatchcase: names of parameters are case-sensitive on every system.
    found = [next((n for n, pattern in enumerate(patterns) if fnmatchcase(name, pattern)), -1) for name in names]
    left = [name for name, part in zip(names, found, strict=True) if part < 0]
    if left:
        more = f" and {len(left) - LISTED} more" if len(left) > LISTED else ""
        raise UsageError(
            f"no pattern of the plan ({', '.join(patterns)}) matches {', '.join(left[:LISTED])}{more}: {len(left)} of "
            f"{len(names)} parameters have no part; end the plan with '*: allreduce'"
        )
    return found


def check_all_used(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Raise UsageError for a pattern that matches none of a model's names."""
    taken = set(match_parts(patterns, names))
    for number, pattern in enumerate(patterns):
        if number in taken:
            continue
        first = next((other for other in patterns[:number] if any(_both(name, pattern, other) for name in names)), None)
        if first is not None:
            raise UsageError(
                f"pattern {shown(pattern)} takes no parameter, because {shown(first)} stands before it and takes all "
                "that it matches; write the narrower one first, or leave it out"
            )
        near = nearest(pattern.replace("*", ""), names, LISTED)
        raise UsageError(f"pattern {shown(pattern)} matches no parameter; the nearest are {', '.join(near)}")


def _both(name: str, pattern: str, other: str) -> bool:
    return fnmatchcase(name, pattern) and fnmatchcase(name, other)
