"""Reads a journal that is too long to be read whole: its head, its end, and short pieces between at equal distances.

A run of 64 workers and 10⁵ steps leaves 2 GB. What a page draws of it are some hundred points, and single steps of the
last minutes: both are in these pieces. Totals are then estimated, and the page says so.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from shoal.core.events import AnyEvent, decode

WHOLE = 12 << 20
"""Bytes of all journals of a run that are read whole: some seconds of processor."""
HEAD, END, PIECE = 16 << 10, 64 << 10, 2 << 10
MOST_PIECES = 4096
"""Of all workers together."""


def is_large(paths: list[Path]) -> bool:
    """Whether these journals are sampled."""
    return sum(size_of(path) for path in paths) > WHOLE


def size_of(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def sample(path: Path, pieces: int) -> Iterator[AnyEvent]:
    """Events of some pieces of the file, in order, all but its end: that is followed from `end_offset`."""
    end = end_offset(path)
    with path.open("rb") as file:
        # The head, because it tells where the worker runs and what it joined.
        yield from _events(file.read(min(HEAD, end)))
        between = max(0, end - HEAD)
        for number in range(pieces):
            start = HEAD + between * number // pieces
            if start >= end:
                return
            file.seek(start)
            file.readline()  # the rest of a line
            yield from _events(file.read(min(PIECE, max(0, end - file.tell()))))


def end_offset(path: Path) -> int:
    """The beginning of the first line within the last `END` bytes."""
    start = max(0, size_of(path) - END)
    if not start:
        return 0
    with path.open("rb") as file:
        file.seek(start)
        file.readline()
        return file.tell()


def _events(data: bytes) -> Iterator[AnyEvent]:
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n") and (event := decode(line)) is not None:
            yield event
