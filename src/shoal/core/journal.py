"""The record on disk: one append-only file of events per worker, one line each.

A crash cannot corrupt more than the last line: whole lines are written with one `write` to a file opened for
appending, and the reader passes over a torn end. Writing is buffered for at most half a second.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shoal.core import clock
from shoal.core.events import AnyEvent, Event

FLUSH_SECONDS = 0.5
FLUSH_BYTES = 1 << 16

_decoder = msgspec.json.Decoder(AnyEvent)


class Journal:
    """Appends events to `path`; used by one thread of one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._flushed = clock.now()

    def emit(self, event: Event) -> None:
        self._buffer += self._encoder.encode(event)
        self._buffer += b"\n"
        if len(self._buffer) >= FLUSH_BYTES or clock.now() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system: it then survives the death of this process."""
        self._flushed = clock.now()
        if self._buffer:
            os.write(self._file, self._buffer)
            self._buffer.clear()

    def close(self) -> None:
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file = -1


def read_journal(path: Path, start: int = 0) -> Iterator[AnyEvent]:
    """The events of one file, from byte `start`; a torn or foreign line is passed over."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            try:
                yield _decoder.decode(line)
            except msgspec.DecodeError:
                continue
