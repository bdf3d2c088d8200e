"""Files that only this user can read, from the moment they exist; a file that others can access is refused."""

import os
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.private import is_private


def write_private(path: Path, text: str) -> None:
    """Make the file, mode 0600; one that is there already stays as it is."""
    try:
        # The mode is given with O_EXCL, so there is no moment in which others could open it.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise UsageError(f"{str(path)!r} exists already; name another file, or remove it first") from None
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}; name another file") from None
    with os.fdopen(handle, "w") as file:
        file.write(text)


def append_private(path: Path, line: str) -> None:
    """Add a line, in one write, to a file of mode 0600 that is made if it is missing."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w") as file:
            check_owner(path, os.fstat(handle))
            file.write(f"{line}\n")
    except OSError as error:
        raise UsageError(f"cannot add to {str(path)!r}: {error.strerror}; make its folder writable") from None


def read_private(path: Path, most: int) -> bytes:
    """The first `most` bytes. OSError: it cannot be read; UsageError: others could have read or written it."""
    # O_NONBLOCK: a pipe put under this name must not hang the reader.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        check_owner(path, os.fstat(handle))
        return file.read(most)


def check_owner(path: Path, status: os.stat_result) -> None:
    if not is_private(status):
        raise UsageError(f"{str(path)!r} can be read by others, so its keys are no secret; make new ones")
