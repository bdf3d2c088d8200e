"""The few operations on files that writers of lasting state may use, so that a test can put another disk under them.

`shoal.testing.crashsim` records what a writer asks of a disk and builds every state a crash may leave. Real ones are
thin: one system call each.
"""

import contextlib
import ctypes
import errno
import os
import shutil
from pathlib import Path

Buffer = bytes | bytearray | memoryview

PIECE = 4 << 20
"""Bytes written at a time: other threads get the interpreter in between."""


# FALLOC_FL_KEEP_SIZE of linux/falloc.h.
_KEEP_SIZE = 1
# Python has `posix_fallocate` only, which makes the file longer, and readers would find zeros at its end.
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
if _fallocate is not None:
    _fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class FileOperations:
    """The operating system's files. An OSError of any call comes through: what failed was not done."""

    def make_folder(self, path: Path) -> None:
        """Make a folder whose parent exists; one that is there already is left as it is."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)

    def create(self, path: Path, mode: int = 0o644) -> int:
        """A new, empty file to be written; whatever was there under this name is gone."""
        # O_NOFOLLOW: the target of a link that somebody left under this name is not overwritten.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        if not mode & 0o077:
            os.fchmod(file, mode)  # one that a crash left there has a mode of its own
        return file

    def extend(self, path: Path) -> int:
        """A file to be written at its end, made if it is not there."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

    def write(self, file: int, data: Buffer) -> None:
        """All of `data`; a short write is continued, or fails."""
        view = memoryview(data).cast("B")
        while len(view):
            view = view[os.write(file, view[:PIECE]) :]  # a write may be short, as on a disk that fills

    def reserve(self, file: int, begin: int, size: int) -> bool:
        """Set blocks aside for bytes to come, where the file system can; False if the disk is too full for that.

        The file does not become longer.
        """
        if _fallocate is None or not _fallocate(file, _KEEP_SIZE, begin, size):
            return True
        return ctypes.get_errno() not in (errno.ENOSPC, errno.EDQUOT)

    def cut(self, path: Path, size: int) -> None:
        """Drop everything of a file after its first `size` bytes."""
        os.truncate(path, size)

    def sync(self, file: int) -> None:
        """Return when the file's content is durable."""
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are durable."""
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or folder its new name at one stroke; a file there before is replaced."""
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with all that is in it; nothing there is as good."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


DISK = FileOperations()
"""The real disk, which everything uses by default."""
