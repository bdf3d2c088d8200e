"""The switch process: compiled from link.c on first use; one line asked, one line answered, in effect when answered."""

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from shoal.core.errors import ShoalError, UsageError
from shoal.core.private import private_subfolder
from shoal.lab.host import FRAME
from shoal.lab.link import LabLink

SOURCE = Path(__file__).with_name("link.c")
COMPILERS = ("cc", "gcc", "clang")


def compiled() -> Path:
    """Return the path of the program compiled from this version of link.c, whether or not it exists."""
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


QUEUE = 1000 * FRAME
"""Bytes that may wait for a link before frames are dropped."""


class LinkStat(msgspec.Struct, frozen=True):
    """The counters of a host's link: up is from the host, down is to it."""

    up_frames: int
    up_bytes: int
    down_frames: int
    down_bytes: int
    lost: int
    """By the coin."""
    overflowed: int
    """From a full queue."""
    duplicated: int
    flipped: int
    refused: int
    """Sent by this host to one that may not hear it."""


class LabSwitch:
    """All ports start open, unlimited and without delay."""

    def __init__(self, program: Path, parent: int, seed: int, namespaces: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [program, "switch", str(parent), str(seed), *namespaces],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for the run; the lab ends its switch when the workers have ended
        )
        # Frames are forwarded from here on; before it a device might not be there yet.
        if self._read() != "ready":
            raise ShoalError(f"the lab's switch did not start: {self._last_words()}; see 'shoal lab check'")

    def set_link(self, port: int, link: LabLink) -> None:
        times = f"{link.delay.nanoseconds} {link.jitter.nanoseconds}"
        self.ask(f"set {port} {link.rate.bits} {times} {link.loss:.17g} {link.burst:.17g} {QUEUE}")

    def noise(self, port: int, duplicate: float, flip: float) -> None:
        self.ask(f"noise {port} {duplicate:.17g} {flip:.17g}")

    def allow(self, rows: Sequence[Sequence[bool]]) -> None:
        """`rows[a][b]`: whether b hears a."""
        self.ask(*(f"allow {port} {''.join('01'[each] for each in row)}" for port, row in enumerate(rows)))

    def stat(self, port: int) -> LinkStat:
        return LinkStat(*map(int, self.ask(f"stat {port}")[0].split()))

    def ask(self, *lines: str) -> list[str]:
        """The answers to some commands."""
        try:
            # All commands in one write, so that they take effect together.
            os.write(self._stdin, "".join(f"{line}\n" for line in lines).encode())
        except BrokenPipeError:
            raise ShoalError(f"the lab's switch is gone: {self._last_words()}; start the lab again") from None
        return [self._answer(line) for line in lines]

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=10.0)

    def abandon(self) -> None:
        """In a forked child: close the pipes; the process is the parent's to wait for."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()
        self._process.returncode = 0

    @property
    def _stdin(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def _answer(self, line: str) -> str:
        answer = self._read()
        if not answer or answer.startswith("error"):
            raise ShoalError(f"the lab's switch says {answer or 'nothing'!r} to {line!r}; start the lab again")
        return answer

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def _last_words(self) -> str:
        self._process.terminate()
        return self._process.communicate(timeout=10.0)[1].decode().strip() or "it gave no reason"
