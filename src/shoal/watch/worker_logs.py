"""What workers print, kept beside the record: `worker-<r>.log`, at most twice `LIMIT` bytes each.

A log that has grown to `LIMIT` becomes `worker-<r>.log.1`, in the place of the one before.
"""

import contextlib
import os
from pathlib import Path

from shoal.core.record import PRIVATE

LIMIT = 8 << 20
LONGEST = 4096
"""Characters of a line; the rest of it is left out."""
PAGE = 64 << 10
"""Bytes a reader gets at once."""


def log_file(directory: Path, rank: int) -> Path:
    return directory / f"worker-{rank}.log"


class LogWriter:
    """Writes the lines of a run's workers; those that cannot be written are left out: a log must not end a training."""

    def __init__(self, directory: Path, limit: int = LIMIT) -> None:
        self._dir, self._limit = directory, limit
        self._open: dict[int, tuple[int, int]] = {}
        """Worker -> descriptor and size."""

    def add(self, rank: int, text: str) -> None:
        # A line without an end must not fill the disk.
        data = f"{text[:LONGEST]}\n".encode(errors="replace")
        with contextlib.suppress(OSError):
            handle, size = self._open.get(rank) or self._begin(rank)
            if size >= self._limit:
                os.close(handle)
                log_file(self._dir, rank).replace(log_file(self._dir, rank).with_suffix(".log.1"))
                handle, size = self._begin(rank)
            self._open[rank] = (handle, size + os.write(handle, data))

    def _begin(self, rank: int) -> tuple[int, int]:
        # O_NOFOLLOW: a link in the run's folder must not lead the output into another file.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(log_file(self._dir, rank), flags, PRIVATE)
        self._open[rank] = (handle, os.fstat(handle).st_size)
        return self._open[rank]

    def close(self) -> None:
        for handle, _ in self._open.values():
            with contextlib.suppress(OSError):
                os.close(handle)
        self._open.clear()


def read_log(directory: Path, rank: int, after: int | None = None) -> tuple[list[str], int]:
    """Whole lines from byte `after` on, or of the end, and the byte after the last of them."""
    try:
        with log_file(directory, rank).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # A place behind the end is of a log that has been moved aside since.
            start = max(0, size - PAGE) if after is None or after > size else after
            file.seek(start)
            if after is None and start:
                # The page begins inside a line, which is left out.
                file.readline()
                start = file.tell()
            data = file.read(PAGE)
    except OSError:
        return [], 0
    whole = data[: data.rfind(b"\n") + 1]
    return [line.decode(errors="replace") for line in whole.splitlines()], start + len(whole)
