"""The coordinator's write-ahead log, framed as in `core.log`: each entry is durable before it takes effect.

Unlike other logs it refuses damage that good entries follow, because a forgotten decision could be made twice.
"""

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from shoal.core.disk import DISK, FileOperations
from shoal.core.errors import ShoalError
from shoal.core.log import find_record, frame_record, framed_size
from shoal.membership.grants import SlotGranted
from shoal.membership.key_register import KeyBound
from shoal.membership.log_entries import Entry, LogState

# Bytes of an entry: far more than a view of the most members takes; beyond it a length is damage.
LARGEST = 1 << 20
RESERVE = 1 << 18
"""Bytes kept free on the disk for later entries: several hundred changes of membership."""

Written = Entry | KeyBound | SlotGranted

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Written)


class CoordinatorLog:
    """The log of one run, locked by the process that serves it. `past`: the entries that were there already."""

    def __init__(self, path: Path, disk: FileOperations = DISK) -> None:
        self.path, self._disk = path, disk
        there = path.exists()
        self._file = disk.extend(path)
        # The log names members' keys; only its owner may read or write it.
        os.fchmod(self._file, 0o600)
        try:
            # The kernel drops the lock when the process ends, however it dies.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise ShoalError(f"{path} is held by another coordinator; two on one log would both decide") from None
        self.past, self._size = read(path)
        # The last write was torn by a crash. No member was told of it, so it is cut off.
        if os.fstat(self._file).st_size > self._size:
            disk.cut(path, self._size)
        disk.sync(self._file)  # the previous coordinator may have died between writing an entry and syncing it
        if not there:
            disk.sync_folder(path.parent)
        self._reserved = 0
        self._reserve()

    def append(self, entry: Written) -> None:
        """Return when the entry is durable. If that fails it is cut off again, since no member was told of it."""
        record = frame_record(_encoder.encode(entry))
        try:
            self._disk.write(self._file, record)
            self._disk.sync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.cut(self.path, self._size)
            raise
        self._size += len(record)
        self._reserve()

    def _reserve(self) -> None:
        """Keep room for later entries, so that members can come and go on a full disk."""
        if self._size + RESERVE // 2 > self._reserved:
            self._disk.reserve(self._file, self._size, RESERVE)
            self._reserved = self._size + RESERVE

    def close(self) -> None:
        self._disk.close(self._file)


def read(path: Path) -> tuple[list[Written], int]:
    """Return the entries of a log, and how many of its bytes they take."""
    data, at, entries = path.read_bytes(), 0, list[Written]()
    while (body := find_record(data, at, LARGEST)) is not None:
        try:
            entries.append(_decoder.decode(body))
        except msgspec.MsgspecError as error:
            raise ShoalError(f"{path} holds at byte {at} what this version cannot read: {error}") from None
        at += framed_size(body)
    if any(find_record(data, later, LARGEST) is not None for later in range(at + 1, len(data))):
        raise ShoalError(f"{path} is damaged at byte {at} and goes on after it; bring back a copy of it")
    return entries, at


def members(path: Path) -> tuple[str, ...]:
    """Return the members that are alive according to a log; a launcher that resumes the run reports each as gone."""
    memory, promised = LogState(), list[str]()
    for entry in read(path)[0]:
        if isinstance(entry, SlotGranted):
            promised.append(entry.member)
        elif not isinstance(entry, KeyBound):
            memory.add(entry)
    known = dict.fromkeys((*memory.installed.view.members, *promised))
    return tuple(member for member in known if member not in memory.lost)
