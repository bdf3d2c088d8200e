"""The way out of a misspelt word: the nearest one that exists, or all that exist."""

import difflib
from collections.abc import Iterable

SHOWN = 40
"""Characters of a user's word that a message repeats."""


def shown(word: str) -> str:
    """`word` quoted on one line, whatever it holds."""
    return repr(word if len(word) <= SHOWN else word[: SHOWN - 3] + "...")


def hint(word: str, known: Iterable[str], otherwise: str) -> str:
    """`did you mean 'x'?` for the nearest of `known`, else `otherwise`."""
    near = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
