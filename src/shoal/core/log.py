"""An append-only file of records, each with its length and checksum: for ledgers and write-ahead logs.

    | length | crc32 | bytes |  | length | crc32 | bytes |  …

What a crash tears is the tail, and `ChecksummedLog` cuts it off when it opens the file: a reader gets a prefix of what
was appended, never a record that was not.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.core.disk import DISK, FileOperations
from shoal.core.durable import write_file

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
LARGEST = 1 << 24
"""Bytes of a record; a longer length can only be garbage."""


class ChecksummedLog:
    """Appends records to `path`. Used by one thread; `sync` may be called from another."""

    def __init__(self, path: Path, disk: FileOperations = DISK) -> None:
        self.path, self._disk = path, disk
        there = path.exists()
        whole = sum(map(framed_size, read_log(path))) if there else 0
        if there and path.stat().st_size > whole:
            disk.cut(path, whole)  # what follows a torn record could never be read
        self._file, self._size = disk.extend(path), whole
        if there:
            disk.sync(self._file)  # records that were written, and not synced, are believed from here on
        if not there:
            disk.sync_folder(path.parent)

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return self._size

    def append(self, record: bytes) -> None:
        """Hand a record to the operating system: it then survives the death of this process."""
        if len(record) > LARGEST:
            raise ValueError(f"a record of {len(record)} bytes is too long for {self.path.name}: at most {LARGEST}")
        try:
            self._disk.write(self._file, frame_record(record))
        except OSError:
            self._disk.cut(self.path, self._size)  # or half a record would hide all that follow
            raise
        self._size += framed_size(record)

    def sync(self) -> None:
        """Return when everything appended so far is durable."""
        self._disk.sync(self._file)

    def close(self) -> None:
        self._disk.close(self._file)


def rewrite_log(path: Path, records: Iterable[bytes], disk: FileOperations = DISK) -> None:
    """Put other records in the place of all that are there; a crash leaves those or these."""
    write_file(path, b"".join(map(frame_record, records)), disk)


def read_log(path: Path) -> Iterator[bytes]:
    """The records of `path` up to the first that is torn or damaged; none if there is no file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            # Garbage: reading so much would only take memory before the checksum fails.
            if length > LARGEST:
                return
            record = file.read(length)
            if len(record) < length or _checksum(record) != checksum:
                return
            yield record


def frame_record(record: bytes) -> bytes:
    """Return a record with its length and checksum before it."""
    return _HEAD.pack(len(record), _checksum(record)) + record


def framed_size(record: bytes) -> int:
    """Return the bytes that a record takes in a file."""
    return _HEAD.size + len(record)


def find_record(data: bytes, at: int, largest: int = LARGEST) -> bytes | None:
    """Return the whole record that begins at byte `at`; None if none does."""
    if len(data) - at < _HEAD.size:
        return None
    length, checksum = _HEAD.unpack_from(data, at)
    record = data[at + _HEAD.size : at + _HEAD.size + min(length, largest)]
    return record if len(record) == length and _checksum(record) == checksum else None


def _checksum(record: bytes) -> int:
    """Checksum of length and content together: zeros, which a power loss may leave, are then no valid record."""
    return zlib.crc32(record, zlib.crc32(_LENGTH.pack(len(record))))
