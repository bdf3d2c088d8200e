"""The record on disk: one append-only file of events per worker, one line each.

A crash cannot corrupt more than the last line: whole lines are written with one `write` to a file opened for
appending, and the reader (watch/tail.py) passes over a torn end. Writing is buffered for at most half a second.

A file that has grown to `LIMIT` is compacted (compaction.py) by a thread, while events go on being appended. On a disk
that is full, events are merged in memory and written when there is room; a little room is kept for them.
"""

import contextlib
import errno
import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from shoal.core import clock
from shoal.core.compaction import adopt, compact, part_of
from shoal.core.disk import DISK
from shoal.core.events import AnyEvent, RunEvent, WarningRaised, decode
from shoal.core.merging import merged

FLUSH_SECONDS = 0.5
FLUSH_BYTES = 1 << 16
"""Events are written after so many seconds or bytes, whichever comes first."""
LIMIT = 32 << 20
"""Bytes of a journal; it may be a little longer while it is being compacted."""
MOST_HELD = 200
"""Events that are kept in memory while the disk is full, after merging; the rest is dropped, and counted."""
ROOM = 1 << 16
"""Bytes reserved on the disk for the entries at the end of a run."""
NO_WIDTH = 1 << 40
"""Steps of a block that no run fills: held events are merged as far as they can be."""
JOIN_SECONDS = 10.0
"""The most that the end of a run waits for a compaction under way."""


class EventJournal:
    """Appends events to `path`; used by one thread of one process."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path, self.limit = path, limit
        self._next = limit
        """Bytes at which the next compaction begins."""
        self._thread: threading.Thread | None = None
        self._compacted: int | None = None
        """Up to which byte the thread has compacted the file."""
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._held: HeldEvents | None = None
        self._failed = self._torn = False
        """Whether the user was told; whether the file ends within a line."""
        self._flushed = clock.now()
        with contextlib.suppress(OSError):
            part_of(path).unlink(missing_ok=True)  # of one that was killed while it compacted
        self._open()

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._file).st_size
        self._reserved = 0

    def emit(self, event: RunEvent) -> None:
        self._buffer += self._encoder.encode(event)
        self._buffer += b"\n"
        if len(self._buffer) >= FLUSH_BYTES or clock.now() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system: it then survives the death of this process."""
        self._flushed = clock.now()
        self._write(last=False)
        if self._held is None:
            self._compact()

    def _write(self, last: bool) -> None:
        """The `last` of all may use the room that was kept."""
        data, held = bytes(self._buffer), self._held
        self._buffer.clear()
        if held is not None:
            held.add(data)
        # Asked before writing: reserved blocks are there even if other programs fill the disk meanwhile.
        if not last and not self._keep_room():
            self._hold(held or HeldEvents(data), os.strerror(errno.ENOSPC))
            return
        # Ends a torn line, which readers pass over; the next event would continue it.
        data = b"\n" * self._torn + (held.lines() if held is not None else data)
        written, why = self._append(data)
        if written:
            self._torn = data[written - 1 : written] != b"\n"
        if why:
            # From the beginning of the line that was torn: the reader passes over its first half.
            rest = data[data.rfind(b"\n", 0, written) + 1 :]
            self._hold(held.only(rest) if held is not None else HeldEvents(rest), why)
        elif held is not None:
            self._held, self._failed = None, False
            self._append(msgspec.json.encode(held.note()) + b"\n")

    def _append(self, data: bytes) -> tuple[int, str]:
        """How much of it was written, and why not all of it was."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:  # a full disk must not end the training it records
            return written, error.strerror or str(error)
        finally:
            self._size += written
        return written, ""

    def _keep_room(self) -> bool:
        if self._size + ROOM // 2 > self._reserved:
            if not DISK.reserve(self._file, self._size, ROOM):
                return False
            self._reserved = self._size + ROOM
        return True

    def _hold(self, events: "HeldEvents", why: str) -> None:
        """Keep what could not be written, and try again with the next events."""
        if not self._failed:
            self._failed = True
            sys.stderr.write(f"shoal: the record {self.path} cannot grow: {why}; training goes on\n")
        self._held = events

    def _compact(self) -> None:
        if self._compacted is not None:
            self._adopt()
        elif self._thread is None and self._size >= self._next:
            self._next = self._size + self.limit // 2  # if this one fails, it is not tried again at once
            self._thread = threading.Thread(target=self._compact_old, name="shoal-compact", daemon=True)
            self._thread.start()

    def _compact_old(self) -> None:
        """In a thread: all but the newest quarter becomes a quarter."""
        try:
            # In a thread that only reads the journal and writes another file; events go on being appended here.
            self._compacted = compact(self.path, self._size - self.limit // 4, self.limit // 4)
        except OSError:  # a full disk: the journal stays as it is, until it has grown to `_next`
            self._thread = None

    def _adopt(self) -> None:
        end, self._compacted, self._thread = self._compacted, None, None
        assert end is not None
        with contextlib.suppress(OSError):
            adopt(self.path, end)
            os.close(self._file)
            self._open()
            self._next = max(self.limit, self._size + self.limit // 4)

    def close(self) -> None:
        if self._file < 0:
            return
        self._write(last=True)
        if (thread := self._thread) is not None:
            thread.join(JOIN_SECONDS)
            if self._compacted is not None:
                self._adopt()
        if self._held is not None:
            sys.stderr.write(f"shoal: the record {self.path} lacks {self._held.count} events: no room was left\n")
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, os.fstat(self._file).st_size)  # gives back the room that was kept
        os.close(self._file)
        self._file = -1


class HeldEvents:
    """Events that wait for room on the disk, merged so that they need little memory."""

    def __init__(self, lines: bytes) -> None:
        self.count = self._dropped = 0
        """How many events these stand for; how many were dropped, because they could not be merged."""
        self._events: list[AnyEvent] = []
        self.add(lines)

    def add(self, lines: bytes) -> None:
        new = _decoded(lines)
        self.count += len(new)
        self._events = merged([*self._events, *new], NO_WIDTH)
        if len(self._events) > MOST_HELD:
            self._events = merged(self._events, NO_WIDTH, thin=True)
        if (extra := len(self._events) - MOST_HELD) > 0:
            self._dropped += extra
            del self._events[MOST_HELD // 2 : MOST_HELD // 2 + extra]

    def only(self, lines: bytes) -> "HeldEvents":
        """Of what `lines` gave, these were not written."""
        self._events = _decoded(lines)
        return self

    def lines(self) -> bytes:
        return b"".join(msgspec.json.encode(event) + b"\n" for event in self._events)

    def note(self) -> WarningRaised:
        dropped = f", and {self._dropped} of them dropped" if self._dropped else ""
        return WarningRaised(
            at=time.time(), text=f"the disk was full: {self.count} events of this record were merged{dropped}"
        )


def _decoded(lines: bytes) -> list[AnyEvent]:
    return [event for line in lines.splitlines(keepends=True) if (event := decode(line)) is not None]
