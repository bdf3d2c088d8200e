"""A launcher's hold on its coordinator: forks it, tells it who died, stops it, starts it again.

    handle = Handle(Setup(run, f"ipc://{folder}/coordinator", log, Rules(first=workers)))
    handle.start(Deadline.after(10.0))      workers may be forked before or after; each calls handle.forget()
    handle.gone("w2", "SIGKILL")            a child died; said again to a coordinator that was started again
    handle.read()                           news: who is lost, which view is installed
    if not handle.alive(): handle.restart(Deadline.after(10.0))
    handle.stop(Deadline.after(5.0))

To resume a run, say before `start` of each of `wal.members(log)` that it is gone, and give the new workers new ids.
Starts no thread and opens no ZeroMQ socket in the launcher. Not for use by several threads.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from shoal.cluster.coordinator.channel import Channel, Command, Failed, News, Ready, Stop
from shoal.cluster.coordinator.process import Process, Setup
from shoal.cluster.launch.signals import held_back
from shoal.cluster.membership.messages import Gone
from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, ShoalError

PAUSE = 0.005
_PR_SET_PDEATHSIG = 1


class Handle:
    """`address` is where agents connect; a free port is filled in once the coordinator is ready."""

    def __init__(self, setup: Setup, in_child: Callable[[], object] = lambda: None) -> None:
        """`in_child` is called in the new process: to close what it has no business with."""
        self.setup, self._in_child = setup, in_child
        self.pid = 0
        self._channel: Channel | None = None
        self._gone: dict[str, str] = {}
        self._unsaid: list[str] = []
        self._news: list[Command | News] = []

    @property
    def address(self) -> str:
        return self.setup.address

    def start(self, deadline: Deadline) -> None:
        """Return when it serves; ShoalError says why it does not."""
        ours, theirs = Channel.pair()
        parent = os.getpid()
        with held_back():
            pid = os.fork()
            if pid == 0:
                ours.forget()
                _become(self.setup, theirs, parent, self._in_child)
            self.pid = pid
        theirs.close()
        self._channel, self._unsaid = ours, list(self._gone)
        self._await_ready(ours, deadline)
        self.tick()

    def restart(self, deadline: Deadline) -> None:
        """Begin again from the log, at the same address; a coordinator that still lives is killed."""
        self._end()
        self.start(deadline)

    def alive(self) -> bool:
        with held_back():  # an interrupt between the two would leave a number that is no longer ours
            if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
                self.pid = 0
        return bool(self.pid)

    def gone(self, member: str, reason: str) -> None:
        """A worker's process has ended. Never waits; what cannot be said now is said by `tick`."""
        self._gone[member] = reason
        self._unsaid.append(member)
        self.tick()

    def tick(self) -> None:
        """Several times a second."""
        while self._unsaid and self._channel is not None:
            member = self._unsaid[0]
            if not self._channel.send(Gone(member=member, reason=self._gone[member])):
                return
            self._unsaid.pop(0)

    def read(self) -> list[Command | News]:
        """What the coordinator has told since the last time: `Lost`, `Installed`, `Failed`."""
        if self._channel is not None:
            self._news += self._channel.receive()
        news, self._news = self._news, []
        return news

    def fileno(self) -> int:
        """For a selector: there is something to `read`."""
        assert self._channel is not None
        return self._channel.fileno()

    def forget(self) -> None:
        """In a forked worker: it must not keep the launcher's end open."""
        if self._channel is not None:
            self._channel.forget()
            self._channel = None
        self.pid = 0

    def stop(self, deadline: Deadline, stop: Stop = Stop()) -> None:  # noqa: B008  (frozen)
        """Ask it to end, and see to it; nothing of it is left but its log."""
        if self._channel is not None and self.pid:
            self._channel.send(stop)
            while self.alive() and not deadline.expired:
                time.sleep(PAUSE)
        self._end()
        if self.address.startswith("ipc://"):
            Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)

    def _await_ready(self, channel: Channel, deadline: Deadline) -> None:
        while True:
            ended = not self.alive()
            for said in channel.receive():
                if isinstance(said, Ready):
                    self.setup = replace(self.setup, address=said.address)
                    return
                if isinstance(said, Failed):
                    self._end()
                    raise ShoalError(f"the coordinator of {self.setup.run} cannot serve: {said.reason}")
                self._news.append(said)
            if ended or deadline.expired:
                self._end()
                raise DeadlineError(
                    f"the coordinator of {self.setup.run} was not ready within {deadline.budget:.0f} s; "
                    f"look whether {self.setup.log.parent} can be written"
                )
            time.sleep(PAUSE)

    def _end(self) -> None:
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.pid = 0
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _become(setup: Setup, channel: Channel, parent: int, in_child: Callable[[], object]) -> NoReturn:
    """Turn this freshly forked process into a coordinator, and never return."""
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is the launcher's: it ends the coordinator last
        if not setup.outlives:
            _die_with(parent)
        in_child()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        process = Process(setup, channel)
        signal.signal(signal.SIGTERM, lambda *_: setattr(process, "stopping", True))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        process.run()
        code = 0
    except BaseException as error:  # noqa: BLE001  (nothing may climb into the launcher's frames)
        with contextlib.suppress(Exception):
            channel.send(Failed(reason=f"{type(error).__name__}: {error}"[:1000]))
    finally:
        os._exit(code)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))  # to end tidily
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)
