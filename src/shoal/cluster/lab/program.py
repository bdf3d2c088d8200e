"""The switch's program: compiled from link.c on first use, kept in the user's cache under the hash of its source.

It runs as root, so it is kept only where nobody else can put another program in its place; otherwise it is compiled
for this process alone.
"""

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from shoal.core.errors import ShoalError, UsageError
from shoal.core.private import private_subfolder

SOURCE = Path(__file__).with_name("link.c")
COMPILERS = ("cc", "gcc", "clang")


def compiled() -> Path:
    """Where the program of this version of link.c is, or would be."""
    return _folder(os.environ.get("XDG_CACHE_HOME")) / f"link-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"


@cache
def _folder(given: str | None) -> Path:
    try:
        return private_subfolder(Path(given) if given else Path.home() / ".cache", "shoal", "lab")
    except (UsageError, RuntimeError) as error:  # RuntimeError: no home
        sys.stderr.write(f"shoal: note: the lab's switch is compiled in every process: {error}\n")
    folder = tempfile.mkdtemp(prefix="shoal-lab-")
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, owner: int) -> None:
    """At the end of the process that made it, not of those it forked."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def compiler() -> str | None:
    """A C compiler of this machine: $CC, or the first that is there."""
    return next(filter(None, (shutil.which(name) for name in (os.environ.get("CC", ""), *COMPILERS) if name)), None)


def program() -> Path:
    """The switch's program, compiled now unless it was before."""
    path = compiled()
    if not path.exists():
        _compile(path)
    return path


def _compile(path: Path) -> None:
    command = compiler()
    if command is None:
        raise UsageError("no C compiler; the lab compiles its switch once (apt-get install gcc)")
    fresh = path.with_suffix(f".{os.getpid()}")  # renamed when whole: another lab may start at this moment
    done = subprocess.run([command, "-O2", "-o", str(fresh), str(SOURCE)], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
        raise ShoalError(f"{command} cannot compile the lab's switch: {reason}; install libc6-dev and linux-libc-dev")
    fresh.replace(path)
