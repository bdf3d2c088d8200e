"""How lasting state is written: never over the last good copy, and never believed before it is durable.

    write to a name of its own -> fsync -> rename -> fsync(parent)

A crash at any moment leaves the old content or the new one (Pillai et al., "All File Systems Are Not Created Equal",
OSDI 2014). After a failed fsync the file is thrown away: asking again may say yes about data that is lost.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from shoal.core.disk import DISK, Buffer, FileOperations

PART = ".part"
"""Suffix of unfinished files; one that is found after a crash may be removed."""


def write_file(path: Path, data: Buffer, disk: FileOperations = DISK, mode: int = 0o644) -> None:
    """Replace the content of `path`, durably; on an error the old content stays and nothing else is left."""
    part = path.with_name(path.name + PART)
    try:
        write_new(part, [data], disk, mode)
        disk.rename(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove(part)
        raise
    # A rename is in the folder's own data, which has to be durable too.
    disk.sync_folder(path.parent)


def write_new(path: Path, pieces: Iterable[Buffer], disk: FileOperations = DISK, mode: int = 0o644) -> None:
    """Write a file with durable content, under a name that is not durable yet, so that no reader finds half of it."""
    file = disk.create(path, mode)
    try:
        for piece in pieces:
            disk.write(file, piece)
        disk.sync(file)
    finally:
        disk.close(file)


def publish_folder(part: Path, final: Path, disk: FileOperations = DISK) -> None:
    """Give a folder whose files are all durable its final name, durably."""
    # Before the rename: under its final name a folder is believed to be complete.
    disk.sync_folder(part)
    disk.rename(part, final)
    disk.sync_folder(final.parent)
