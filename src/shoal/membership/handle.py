"""The launcher's handle on its coordinator process: starts it, tells it which workers ended, stops it, and restarts it
ever later while the cause of its failure lasts.
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

from shoal.core.clock import Deadline, now
from shoal.core.errors import DeadlineError, ShoalError
from shoal.core.signals import held_back
from shoal.membership.launcher_channel import (
    Command,
    CoordinatorFailed,
    CoordinatorReady,
    ExpectRemote,
    LauncherChannel,
    News,
    StopCoordinator,
    SwitchPlan,
)
from shoal.membership.plan_requests import PlanPrepared, PlanUnprepared
from shoal.membership.protocol import ProcessExited
from shoal.membership.server import CoordinatorServer, CoordinatorSetup

SHORTEST, LONGEST = 1.0, 16.0
"""Seconds before the second start, and the most between two later ones; each is twice the one before."""
CALM = 30.0
"""Seconds a coordinator has to serve for the next failure to count as a new one."""


class CoordinatorOutage:
    """Of one run; `note` is the line the user has not been told yet, empty if there is none."""

    def __init__(self) -> None:
        self.note = ""
        self._delay = 0.0
        self._due = self._started = now()
        self._told = False

    def failed(self, reason: str, log: object) -> None:
        """It ended by itself, or could not be started, for this reason."""
        calm = now() - self._started >= CALM
        self._delay = 0.0 if calm else min(LONGEST, max(SHORTEST, 2 * self._delay))
        self._due = now() + self._delay
        if not self._told or calm:
            self._told = True
            self.note = (
                f"the coordinator cannot write {log}: {reason}; it tries again until it can, and the workers train on "
                "as long as none comes or goes"
            )

    @property
    def over(self) -> bool:
        """Whether it is time to start it again; asked before each start."""
        if now() < self._due:
            return False
        self._started = now()
        return True


PAUSE = 0.005
_PR_SET_PDEATHSIG = 1


class CoordinatorHandle:
    """`address` is where agents connect; a free port is filled in once the coordinator is ready."""

    def __init__(self, setup: CoordinatorSetup, in_child: Callable[[], object] = lambda: None) -> None:
        """`in_child` is called in the new process: to close what it has no business with."""
        self.setup, self._in_child = setup, in_child
        self.pid = 0
        self._channel: LauncherChannel | None = None
        self._gone: dict[str, str] = {}
        self._unsaid: list[str] = []
        self._plan: SwitchPlan | None = None
        """Asked for and not known to be made: a coordinator that is started again is told again."""
        self._plan_said = False
        self._news: list[Command | News] = []

    @property
    def address(self) -> str:
        return self.setup.address

    def start(self, deadline: Deadline) -> None:
        """Return when it serves; ShoalError says why it does not."""
        ours, theirs = LauncherChannel.pair()
        parent = os.getpid()
        # Signals wait: an interrupt between the fork and storing its pid would leave a process that nothing ends.
        with held_back():
            pid = os.fork()
            if pid == 0:
                ours.forget()
                _become(self.setup, theirs, parent, self._in_child)
            self.pid = pid
        # Only the child may hold its end, or this side would never see it closed.
        theirs.close()
        # A new coordinator knows from its log who was a member, not who has ended since: say all of it again.
        self._channel, self._unsaid, self._plan_said = ours, list(self._gone), False
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

    def expect(self, remote: int) -> None:
        """The first view waits for so many workers of other machines; a coordinator that is started again knows it."""
        self.setup = replace(self.setup, rules=replace(self.setup.rules, remote=remote))
        if self._channel is not None:
            self._channel.send(ExpectRemote(count=remote))

    def answer(self, said: PlanPrepared | PlanUnprepared) -> None:
        """Say whether what a plan needs runs. Never waits; the coordinator asks again if this gets lost."""
        if self._channel is not None:
            self._channel.send(said)

    def switch(self, plan: str) -> None:
        """Ask for another plan. Never waits; see `switched`."""
        self._plan, self._plan_said = SwitchPlan(plan=plan), False
        self.tick()

    def switched(self, plan: str) -> None:
        """A view has this plan."""
        if self._plan is not None and self._plan.plan == plan:
            self._plan = None

    def tick(self) -> None:
        """Several times a second."""
        if self._plan is not None and not self._plan_said and self._channel is not None:
            self._plan_said = self._channel.send(self._plan)
        while self._unsaid and self._channel is not None:
            member = self._unsaid[0]
            if not self._channel.send(ProcessExited(member=member, reason=self._gone[member])):
                return
            self._unsaid.pop(0)

    def read(self) -> list[Command | News]:
        """What the coordinator has told since the last time: `MemberLost`, `ViewInstalled` and others."""
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

    def stop(self, deadline: Deadline, stop: StopCoordinator = StopCoordinator()) -> None:  # noqa: B008  (frozen)
        """Ask it to end, and see to it; nothing of it is left but its log."""
        if self._channel is not None and self.pid:
            self._channel.send(stop)
            while self.alive() and not deadline.expired:
                time.sleep(PAUSE)
        self._end()
        if self.address.startswith("ipc://"):
            Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)

    def _await_ready(self, channel: LauncherChannel, deadline: Deadline) -> None:
        while True:
            ended = not self.alive()
            for said in channel.receive():
                if isinstance(said, CoordinatorReady):
                    self.setup = replace(self.setup, address=said.address)
                    return
                if isinstance(said, CoordinatorFailed):
                    self._end()
                    raise ShoalError(f"the coordinator of {self.setup.run} cannot serve: {said.reason}")
                self._news.append(said)
            # After reading: what a dying coordinator has said last is its reason.
            if ended or deadline.expired:
                self._end()
                raise DeadlineError(
                    f"the coordinator of {self.setup.run} was not ready within {deadline.budget:.0f} s; "
                    f"look whether {self.setup.log.parent} can be written"
                )
            time.sleep(PAUSE)

    def _end(self) -> None:
        if self.alive():
            # It has had its chance to end tidily; its log is durable after every entry.
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.pid = 0
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _become(setup: CoordinatorSetup, channel: LauncherChannel, parent: int, in_child: Callable[[], object]) -> NoReturn:
    """Turn this freshly forked process into a coordinator, and never return."""
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is the launcher's: it ends the coordinator last
        if not setup.outlives:
            _die_with(parent)
        in_child()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Its launcher, or SIGTERM, decides when it ends, not a terminal that closes.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        process = CoordinatorServer(setup, channel)
        signal.signal(signal.SIGTERM, lambda *_: setattr(process, "stopping", True))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        process.run()
        code = 0
    except BaseException as error:  # noqa: BLE001  (nothing may climb into the launcher's frames)
        with contextlib.suppress(Exception):
            channel.send(CoordinatorFailed(reason=f"{type(error).__name__}: {error}"[:1000]))
    finally:
        os._exit(code)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))  # to end tidily
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)
