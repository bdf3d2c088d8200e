"""The way out of a misspelt word: the nearest one that exists, or all that exist."""

import difflib
from collections.abc import Iterable

SHOWN = 40
"""Characters of a user's word that a message repeats."""


def shown(word: object) -> str:
    """Quote the user's text on one line, shortened."""
    text = word if isinstance(word, str) else repr(word)
    short = text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
    return repr(short) if isinstance(word, str) else short


def hint(word: str, known: Iterable[str], otherwise: str) -> str:
    """`did you mean 'x'?` for the nearest of `known`, else `otherwise`."""
    near = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def nearest(word: str, known: Iterable[str], count: int) -> list[str]:
    """The `count` words that are most like `word`, however far."""
    # 0: in a list of all, the far ones are wanted too.
    return difflib.get_close_matches(word, list(known), n=count, cutoff=0.0)
