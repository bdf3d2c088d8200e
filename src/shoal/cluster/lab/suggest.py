"""The way out of a misspelt key: the nearest one that exists, or all that exist."""

import difflib
from collections.abc import Collection

SHOWN = 40
"""Characters of a user's word that a message repeats."""


def shown(word: object) -> str:
    """What the user wrote, quoted, on one line, never long."""
    text = repr(word)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def hint(word: str, known: Collection[str]) -> str:
    """`did you mean 'x'?` for the nearest of `known`, else all of them."""
    near = difflib.get_close_matches(word.lower(), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"keys are {', '.join(known)}"
