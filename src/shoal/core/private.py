"""Folders that only this user can change: no other user can put files there, or replace the folder.

    open_private()               for what lives as long as processes do: $XDG_RUNTIME_DIR/shoal, or /tmp/shoal-UID
    private_subfolder(base, …)   for what is executed when it is read again: compiled code

A folder that another user has made, could enter, or could exchange by writing to one above it, is refused.
"""

import contextlib
import grp
import os
import pwd
import stat
import tempfile
from pathlib import Path

from shoal.core.errors import UsageError


def private_folder() -> Path:
    """Return the path, whether or not the folder exists."""
    given = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    with contextlib.suppress(OSError):
        # Another user's variable may have come along with `sudo`.
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


def is_private(status: os.stat_result) -> bool:
    """Return whether a file or folder is this user's alone."""
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def check_socket_folder(folder: Path) -> None:
    """Refuse a folder for a socket that others could connect to: on one host sockets have no keys."""
    if not is_private(os.stat(folder)):
        raise UsageError(f"{str(folder)!r} is open to others; sockets need a folder of mode 0700")


def check_private(folder: Path) -> None:
    """Refuse a folder that is not this user's alone, or a link to one."""
    # lstat: a link's target may be private while the link itself is not.
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or not is_private(status):
        raise UsageError(f"{str(folder)!r} is not yours alone; remove it, or set XDG_RUNTIME_DIR to a folder of yours")


def private_subfolder(base: Path, *names: str) -> Path:
    """The folder `names` below `base`, made if it was missing; UsageError says why it cannot be trusted.

    The path that is returned has no symbolic links: one could be turned to another place after it was checked.
    """
    given = base.absolute().joinpath(*names)
    try:
        there = next(path for path in (given, *given.parents) if os.path.lexists(path))
        check_ancestry(there.resolve(strict=True))  # before anything is made there
        for path in reversed([given, *given.parents]):
            if not path.exists():
                path.mkdir(mode=0o700, exist_ok=True)
        folder = given.resolve(strict=True)
        check_ancestry(folder)
        if stat.S_IMODE(os.lstat(folder).st_mode) & 0o077:
            raise UsageError(f"{str(folder)!r} can be entered by others; remove it, or make it yours alone: chmod 700")
    except OSError as error:
        raise UsageError(f"{str(given)!r} cannot be made: {error.strerror}") from None
    return folder


def check_ancestry(folder: Path) -> None:
    """Refuse a folder if a user other than this one and root could write to it or to one above it.

    ssh checks its files in the same way. With the sticky bit, as in /tmp, other users cannot change this user's files.
    """
    for path in (folder, *folder.parents):
        status = os.lstat(path)
        if status.st_uid not in (0, os.geteuid()):
            raise UsageError(f"{str(path)!r} belongs to user {status.st_uid}, who could put something else there")
        open_to = stat.S_IMODE(status.st_mode) & 0o022
        # Looked up only when it decides: reading all users may ask a directory server.
        if open_to == 0o020 and _alone_in_group(status.st_gid):
            open_to = 0
        if open_to and not status.st_mode & stat.S_ISVTX:
            mode = stat.S_IMODE(status.st_mode)
            raise UsageError(f"{str(path)!r} can be written by others (mode {mode:o}); chmod go-w")


def _alone_in_group(gid: int) -> bool:
    """Return whether a group has no other member: many systems give each user a group, which may write by default."""
    try:
        me = pwd.getpwuid(os.geteuid())
        members = {*grp.getgrgid(gid).gr_mem, *(each.pw_name for each in pwd.getpwall() if each.pw_gid == gid)}
    except KeyError:
        return False
    return me.pw_gid == gid and members <= {me.pw_name}
