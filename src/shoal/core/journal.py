"""The record on disk: one append-only file of events per worker, one line each.

A crash cannot corrupt more than the last line: whole lines are written with one `write` to a file opened for
appending, and the reader (watch/tail.py) passes over a torn end. Writing is buffered for at most half a second.
"""

import os
import sys
from pathlib import Path

import msgspec

from shoal.core import clock
from shoal.core.events import Event

FLUSH_SECONDS = 0.5
FLUSH_BYTES = 1 << 16


class Journal:
    """Appends events to `path`; used by one thread of one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._flushed = clock.now()
        self._failed = False

    def emit(self, event: Event) -> None:
        self._buffer += self._encoder.encode(event)
        self._buffer += b"\n"
        if len(self._buffer) >= FLUSH_BYTES or clock.now() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system: it then survives the death of this process."""
        self._flushed = clock.now()
        try:
            while self._buffer:
                del self._buffer[: os.write(self._file, self._buffer)]
        except OSError as error:  # a full disk must not end the training it records
            if not self._failed:
                sys.stderr.write(f"shoal: the record {self.path} has a gap: {error.strerror}; training goes on\n")
            self._failed = True
            self._buffer[:] = b"\n"  # ends the torn line, should there be room again

    def close(self) -> None:
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file = -1
