"""A process of this host, known by its number and the moment it began: numbers are given out again, pairs are not."""

import contextlib
import os
import select
import signal
from pathlib import Path

import msgspec

_BEGAN = 19
"""Index of a process's start time in /proc/PID/stat, counted from its state (field 3 of proc(5))."""


class HostProcess(msgspec.Struct, frozen=True):
    """`began` is in clock ticks since the machine was started; 0 where it could not be found out."""

    pid: int = 0
    began: int = 0

    @classmethod
    def of(cls, pid: int) -> "HostProcess":
        """The process that has this number now."""
        fields = _fields(pid)
        return cls(pid, int(fields[_BEGAN]) if fields else 0)

    @property
    def state(self) -> str:
        """`running`, `stopped` (by SIGSTOP, Ctrl-Z or a debugger), or `gone`."""
        fields = _fields(self.pid) if self.pid > 0 else []
        if not fields or int(fields[_BEGAN]) != self.began or fields[0] in ("Z", "X"):
            return "gone"
        return "stopped" if fields[0] in ("T", "t") else "running"

    def send(self, *numbers: signal.Signals) -> bool:
        """Send signals to this process and never to another that has its number since; whether it was there."""
        with contextlib.suppress(ProcessLookupError), _ProcessDescriptor(self.pid) as handle:
            if self.state != "gone":  # asked after the handle was opened, which then stands for this very process
                for number in numbers:
                    signal.pidfd_send_signal(handle, number)
                return True
        return False

    def ended(self, seconds: float) -> bool:
        """Wait at most `seconds`; return whether it has ended."""
        with contextlib.suppress(ProcessLookupError), _ProcessDescriptor(self.pid) as handle:
            if self.state == "gone":
                return True
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            # A pidfd becomes readable when its process ends.
            return bool(poll.poll(int(1000 * seconds)))
        return True


class _ProcessDescriptor:
    """A descriptor that stands for a process, whatever becomes of its number."""

    def __init__(self, pid: int) -> None:
        self._handle = os.pidfd_open(pid)

    def __enter__(self) -> int:
        return self._handle

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # From the last bracket: a process may have brackets and spaces in its name.
    return text.rpartition(")")[2].split()
