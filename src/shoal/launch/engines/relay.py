"""The local process that represents a machine: it carries the machine's output and exit code. Closing its standard
input asks the machine to end."""

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO, Any, Protocol

from shoal.core.clock import Deadline

_PR_SET_PDEATHSIG = 1
LONGEST_LINE = 1 << 16


def open_relay(command: Sequence[str], secret: str = "", folder: str | None = None) -> "subprocess.Popen[bytes]":
    """Start `command` with `secret` on its standard input, which stays open: its end tells the other side to leave."""
    relay = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        start_new_session=True,  # Ctrl-C is the launcher's: it lets workers end well
        preexec_fn=_die_with_launcher,
    )
    if secret and relay.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            relay.stdin.write(f"{secret}\n".encode())  # an empty line ends the text
            relay.stdin.flush()
    return relay


def _die_with_launcher() -> None:
    # The launcher may fork inside `held_back`, and a mask survives exec.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


class RelayInput(Protocol):
    """Takes the invitation; closing it asks the other side to end."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class RelayProcess(Protocol):
    """The part of `subprocess.Popen` that a process representing a machine must have."""

    returncode: Any

    @property
    def stdin(self) -> RelayInput | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    @property
    def stderr(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def send_signal(self, number: int, /) -> None: ...


class RelayOutput:
    """Reads what a relay carries, line by line, without waiting."""

    def __init__(self, process: RelayProcess) -> None:
        self.process = process
        self._partial = {"out": b"", "err": b""}
        self._selector = selectors.DefaultSelector()
        for pipe, stream in ((process.stdout, "out"), (process.stderr, "err")):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, stream)

    def read(self, seconds: float = 0.0) -> list[tuple[str, str]]:
        """(stream, line) for every line that has come."""
        lines: list[tuple[str, str]] = []
        for key, _ in self._selector.select(seconds) if self._selector.get_map() else ():
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
            *whole, rest = (self._partial[key.data] + data).split(b"\n")
            # A line without an end must not take memory for ever; at the end of the pipe it is all that will come.
            if rest and (not data or len(rest) > LONGEST_LINE):
                whole, rest = [*whole, rest], b""
            self._partial[key.data] = rest
            lines += [(key.data, line.decode(errors="replace").rstrip("\r")) for line in whole]
        return lines

    @property
    def ended(self) -> bool:
        """Whether nothing more can come."""
        return self.process.poll() is not None and not self._selector.get_map()

    def drain(self, deadline: Deadline) -> list[tuple[str, str]]:
        """The last lines of a process that has ended; a child of it may hold the pipe open, so not for ever."""
        lines: list[tuple[str, str]] = []
        while self._selector.get_map() and not deadline.expired:
            lines += self.read(0.05)
        return lines

    def ask_to_end(self) -> None:
        """The other side leaves after its step."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def end(self) -> None:
        """Kill the process at once."""
        self.signal(signal.SIGKILL)
        while self.process.poll() is None:
            time.sleep(0.01)
        self.close()

    def close(self) -> None:
        self._selector.close()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
