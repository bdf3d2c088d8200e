"""Locks between processes that use one registry. All are flocks: they go with the process, however it dies.

lock             shared by writers while blobs wait for their row, exclusive for what removes blobs
holds/<digest>   shared by all users of a version (a run trained from it, a server); `is_held` asks
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from shoal.core.clock import Deadline
from shoal.models.errors import RegistryError

SECONDS = 60.0
"""How long a writer or a collection waits for the other."""


def _open(path: Path) -> int:
    try:
        # O_NOFOLLOW: in a folder that others may write to, a link could name any file of this user.
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise RegistryError(f"cannot lock {path}: {error.strerror}; may you write in this registry?") from None


@contextmanager
def locked(root: Path, *, exclusive: bool, seconds: float = SECONDS) -> Iterator[None]:
    """Hold the registry's lock inside the block; RegistryError if others do not let go of it."""
    file = _open(root / "lock")
    try:
        _wait(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, root, seconds)
        yield
    finally:
        os.close(file)


def _wait(file: int, kind: int, root: Path, seconds: float) -> None:
    deadline = Deadline.after(seconds)
    while True:
        try:
            # Polled, because a blocking flock has no timeout.
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline.expired:
                raise RegistryError(f"{root} was locked by another process for {seconds:.0f} s; try again") from None
            time.sleep(0.01)


class VersionHold:
    """Keeps one version from being removed while it is open; a context manager, or until `close`."""

    def __init__(self, root: Path, digest: str) -> None:
        folder = root / "holds"
        with contextlib.suppress(OSError):  # opening the file in it says what is wrong
            folder.mkdir(exist_ok=True)
        self._file: int | None = _open(folder / digest)
        # Never blocked: `is_held` locks it only under the exclusive lock, and `hold` has the shared one.
        fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_held(root: Path, digest: str) -> bool:
    """Whether a living process of this host holds the version. Ask with the exclusive lock."""
    path = root / "holds" / digest
    if not path.exists():
        return False
    file = _open(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        # No process holds it, and the exclusive lock keeps new holds away until this file is gone.
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(file)
