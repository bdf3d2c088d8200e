"""The two processes of a service with a replica: watched, promoted and started again by the launcher that forked them.

    launcher ── fork ──> primary, backup
        │  <── ReplicaReady ── backup                 only then may it take over
        │  ── ReplicaPromoted, ReplicaAlone ──>       as `replica_roster.py` decides, when one of them has ended

What the processes say to each other is their own; the launcher waits for nobody but in the beginning.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.core.clock import Deadline
from shoal.core.errors import ShoalError
from shoal.launch.replica_roster import LeaveAlone, PromoteReplica, ReplicaOrder, ReplicaRoster, StartReplica
from shoal.launch.service_channel import (
    MemberAccused,
    ReplicaAlone,
    ReplicaPartner,
    ReplicaPromoted,
    ReplicaReady,
    ServiceChannel,
    ServiceReady,
    ServiceView,
)

LOOK = 0.05
"""Seconds between looks at whether the first backup is ready."""


@dataclass(frozen=True)
class ReplicaSeat:
    """Which process of a service with a replica this is."""

    start: int
    backs: int | None
    """The start of the process that it backs; None: it answers by itself."""


ReplicaStarter = Callable[[ReplicaSeat], tuple[int, ServiceChannel]]
"""Forks a process; returns its id and the launcher's end of its channel."""


@dataclass
class ServiceReplica:
    """A process that lives, as far as is known."""

    pid: int
    channel: ServiceChannel


class ServiceReplicas:
    """Of one service. `lost`: its name and the signal its last process died of, once nobody has the state."""

    def __init__(self, number: int, name: str, replacements: int, start: ReplicaStarter) -> None:
        self.number, self.name, self._start = number, name, start
        self.lost: tuple[str, int] | None = None
        self._roster = ReplicaRoster(replacements)
        self._replaces = replacements > 0
        self._living: dict[int, ServiceReplica] = {}
        self._addresses: dict[int, str] = {}
        """Of the processes that listen under keys."""
        self._accused: list[MemberAccused] = []

    def begin(self) -> None:
        for order in self._roster.begin():
            self._obey(order)

    @property
    def term(self) -> int:
        """How often another process has taken over."""
        return self._roster.term

    def await_ready(self, deadline: Deadline) -> None:
        """Return when the backup can take over. ShoalError: it never could."""
        while not self._roster.is_ready:
            ended = self._find_ended()
            if ended or deadline.expired:
                raise ShoalError(f"{self.name} and its replica did not meet in {deadline.budget:.0f} s, or have ended")
            self._hear(LOOK)

    def await_addresses(self, deadline: Deadline) -> list[str]:
        """Return where both processes listen, between hosts. ShoalError: they do not."""
        while len(self._addresses) < len(self._living):
            if self._find_ended() or deadline.expired:
                raise ShoalError(f"{self.name} and its replica do not listen after {deadline.budget:.0f} s")
            self._hear(LOOK)
        return [self._addresses[start] for start in sorted(self._addresses)]

    def introduce(self, partners: Sequence[ReplicaPartner]) -> None:
        """Tell each of the two where the other one is; `partners`: by start."""
        for start, replica in self._living.items():
            replica.channel.say(partners[1 - start])

    def tell(self, view: ServiceView | None) -> None:
        """Where they listen under keys: the members of the newest view."""
        for replica in self._living.values() if self._addresses else ():
            replica.channel.tell(view)

    def take_accused(self) -> list[MemberAccused]:
        self._hear()
        accused, self._accused = self._accused, []
        return accused

    def is_ready(self) -> bool:
        """Return whether the backup can take over by now."""
        self._hear()
        return self._roster.is_ready

    def _hear(self, seconds: float = 0.0) -> None:
        for start, replica in self._living.items():
            while not replica.channel.over and (word := replica.channel.hear(seconds)) is not None:
                if isinstance(word, ReplicaReady):
                    self._roster.note_ready(start)
                elif isinstance(word, ServiceReady):
                    self._addresses[start] = word.address
                elif isinstance(word, MemberAccused):
                    self._accused.append(word)

    def tick(self) -> list[str]:
        """Act on what has ended since the last time; returns a line for each."""
        notes = []
        for start, number in self._find_ended():
            # what it, and the backup, said before counts: the ready backup of a dead primary must be known as such
            self._hear()
            self._living.pop(start).channel.close()
            notes += self._note_end(start, number)
        return notes

    def _find_ended(self) -> list[tuple[int, int]]:
        """Start of each process that has ended, and the signal it died of (0: none)."""
        ended = []
        for start, replica in self._living.items():
            found, status = os.waitpid(replica.pid, os.WNOHANG)
            if found:
                # it is reaped, so the number may be another process's from now on
                replica.pid = 0
                ended.append((start, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0))
        return ended

    def _note_end(self, start: int, number: int) -> list[str]:
        if self.lost is not None:
            return []
        was_primary = start == self._roster.primary
        orders = self._roster.note_end(start)
        for order in orders:
            self._obey(order)
        if self._roster.is_lost:
            self.lost = self.name, number
            return []
        who = self.name if was_primary else f"the replica of {self.name}"
        did = "; its replica took over" if was_primary else ""
        again = any(isinstance(order, StartReplica) for order in orders)
        often = ", which was replaced too often" if self._replaces else ""
        next_ = "another replica was started" if again else f"it goes on without a replica{often}"
        return [f"{who} died of {_name_signal(number)}{did}; {next_}"]

    def _obey(self, order: ReplicaOrder) -> None:
        if isinstance(order, StartReplica):
            self._living[order.start] = ServiceReplica(*self._start(ReplicaSeat(order.start, order.backs)))
        elif isinstance(order, PromoteReplica):
            self._living[order.start].channel.say(ReplicaPromoted(order.term))
        elif isinstance(order, LeaveAlone):
            self._living[order.start].channel.say(ReplicaAlone())

    def forget(self) -> None:
        """In another process: the channels are the launcher's."""
        for replica in self._living.values():
            replica.channel.close()
        self._living = {}

    def close(self) -> None:
        for replica in self._living.values():
            if replica.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(replica.pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(replica.pid, 0)
        self.forget()


def _name_signal(number: int) -> str:
    known = {each.value: each.name for each in signal.Signals}
    return known.get(number, f"signal {number}") if number else "no reason given"
