"""Runs a Python function inside a host, in a forked child, and receives its messages.

    with inside(lab, 1, echo) as server, inside(lab, 0, ping, server.hear(), 40) as client:
        times = client.hear()

The function gets `say` first, then its arguments; its messages are sent as JSON.
"""

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec

import msgspec

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, ShoalError

if TYPE_CHECKING:
    from shoal.lab.lab import NetworkLab


Say = Callable[[object], None]
P = ParamSpec("P")
PATIENCE = 30.0


class HostChild:
    """The function in the host, as its parent sees it."""

    def __init__(self, pid: int, pipe: int, host: int) -> None:
        self.pid, self.host = pid, host
        self._pipe = pipe
        self._heard = b""

    def hear(self, seconds: float = PATIENCE) -> Any:
        """Return its next message."""
        deadline = Deadline.after(seconds)
        while b"\n" not in self._heard:
            if not select.select([self._pipe], [], [], deadline.left)[0]:
                raise DeadlineError(f"host {self.host} said nothing for {seconds:g} s; is its link cut?")
            data = os.read(self._pipe, 1 << 16)
            if not data:
                raise ShoalError(f"what ran in host {self.host} ended without an answer; its error stands above")
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return msgspec.json.decode(line)

    def end(self) -> None:
        os.close(self._pipe)
        with suppress(ProcessLookupError):
            # The function may be an endless loop, such as an echo server.
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@contextmanager
def inside(
    lab: "NetworkLab", host: int, function: Callable[Concatenate[Say, P], None], *args: P.args, **kwargs: P.kwargs
) -> Iterator[HostChild]:
    """`function` runs in the host until it returns, at the longest until the end of the block."""
    read, write = os.pipe()
    sys.stdout.flush()  # or the child would inherit what is still in the buffers
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _run(lab, host, lambda: function(lambda what: _say(write, what), *args, **kwargs))
    os.close(write)
    child = HostChild(pid, read, host)
    try:
        yield child
    finally:
        child.end()


def _say(pipe: int, what: object) -> None:
    data = msgspec.json.encode(what) + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def _run(lab: "NetworkLab", host: int, function: Callable[[], None]) -> NoReturn:
    """In the child: never returns into the parent's code."""
    code = 1
    try:
        lab.enter(host)
        function()
        code = 0
    except BaseException:  # noqa: BLE001  (whatever it is, this process ends here)
        traceback.print_exc()
    os._exit(code)
