"""A folder of this user's for things that live as long as processes do: $XDG_RUNTIME_DIR/shoal, or /tmp/shoal-UID.

Nobody else can look into it or put anything there: one that another user has made, or could enter, is refused.
"""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from shoal.core.errors import UsageError


def private_folder() -> Path:
    """Where it is, whether it is there or not."""
    given = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    with contextlib.suppress(OSError):
        if given.is_absolute() and given.stat().st_uid == os.geteuid():
            return given / "shoal"
    return Path(tempfile.gettempdir()) / f"shoal-{os.geteuid()}"


def open_private() -> Path:
    """The folder, made if it was missing; UsageError if it is not this user's alone."""
    folder = private_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        check_private(folder)
    except OSError as error:
        raise UsageError(
            f"cannot make {str(folder)!r}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours"
        ) from (None)
    return folder


def check_private(folder: Path) -> None:
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise UsageError(f"{str(folder)!r} is not yours alone; remove it, or set XDG_RUNTIME_DIR to a folder of yours")
