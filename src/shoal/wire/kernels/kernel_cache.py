"""The folder of compiled kernels: $NUMBA_CACHE_DIR, $XDG_CACHE_HOME or ~/.cache, below it shoal/kernels/DIGEST.

numba keeps them as pickles, and a pickle runs what it says when it is read. So the folder must be this user's alone,
and no other user may be able to replace it; otherwise kernels are compiled in every process, and one line says
why.
"""

import contextlib
import fcntl
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.core.private import private_subfolder

NOT_COMPILED = ("kernel_cache.py", "progress.py", "__main__.py")
PATIENCE = 60.0
"""Seconds to wait for a process that compiles a kernel; the longest takes about ten on a busy machine."""


@cache
def cache_folder() -> Path | None:
    """Return the folder for compiled code of these sources; None if no folder is safe to use."""
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(given) if given else Path.home() / ".cache"
        folder = private_subfolder(base, "shoal", "kernels", _digest())
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except UsageError as error:
        sys.stderr.write(f"shoal: note: compiled kernels are not kept: {error}\n")
    except (OSError, RuntimeError):  # a read-only folder, or no home
        pass
    return None


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Inside, no other process compiles for this folder: it waits, and then loads what this one has kept."""
    try:
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:  # a full disk, perhaps: then several compile the same
        yield
        return
    try:
        deadline = Deadline.after(PATIENCE)
        while not _locked(file) and not deadline.expired:
            time.sleep(0.05)
        yield
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _digest() -> str:
    """Digest all kernel sources together: kernels inline each other, so a change in one makes others stale."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.name not in NOT_COMPILED:
            digest.update(path.read_bytes())
    return digest.hexdigest()
