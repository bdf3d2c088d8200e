"""`shoal join`: workers of this machine in a run that began on another.

    launcher ── fork ──> worker: builds its model, knocks, takes the state from a donor, trains
        │ lost: another takes its seat, under an id that it asks the coordinator for itself
        │ Ctrl-C: "finish your step, then leave"; a second one ends at once
        └ the run ends: so does the visit

The launcher of a visit has no coordinator: that one is on the machine the run began on, and so are ledger and
checkpoints.
"""

import contextlib
import os
import signal
from pathlib import Path

from shoal.cluster.arena import Arena
from shoal.cluster.board import BYTES, Board, State
from shoal.cluster.coordinator.channel import Command, News, Stop
from shoal.cluster.coordinator.handle import Handle
from shoal.cluster.group import Group
from shoal.cluster.house import Household
from shoal.cluster.launch.asking import ask, question
from shoal.cluster.launch.blame import Worker, parse
from shoal.cluster.launch.job import Job, Watcher
from shoal.cluster.launch.local import LocalLauncher
from shoal.cluster.launch.place import Office, Place
from shoal.cluster.launch.policy import Policy
from shoal.cluster.launch.survival import PAUSE, Survival
from shoal.cluster.launch.worker import Report
from shoal.cluster.linked import LinkedGroup
from shoal.cluster.links.door import Door
from shoal.cluster.links.keys import Keys
from shoal.cluster.membership.credentials import Key
from shoal.cluster.membership.elastic import Elastic
from shoal.cluster.membership.invitation import Brief
from shoal.cluster.membership.session import seat_of
from shoal.core.clock import Deadline
from shoal.core.errors import Evicted, UsageError

LEAVE_GRACE = 60.0
"""Seconds in which workers may finish the step they are in."""

GIVES_UP = 30.0
"""Seconds without a word of the coordinator after which a worker that is not in yet stops waiting for one."""


class Away(Place):
    """On this host, in the run of another; `own` is the address by which the others reach this one."""

    def __init__(self, brief: Brief, address: str, key: Key, own: str, arena: Arena) -> None:
        self.brief, self.address, self._key, self.own, self.arena = brief, address, key, own, arena
        self._household = Household(tuple(sorted(map(seat_of, brief.members))))

    def open(self) -> None:
        pass

    def office(self, folder: Path) -> Office:
        return Office(self.address)

    def key(self, rank: int) -> Key:
        return self._key

    def enter(self, rank: int, size: int, session: Elastic | None = None) -> Group:
        door = Door(f"tcp://{self.own}:*", Keys.new())
        board, home = Board(self.arena.map(0, BYTES)), (self.arena, self._household)
        return LinkedGroup(self.brief.run, {}, rank, door, board, session, guest=True, home=home)

    def tick(self, board: Board) -> None:
        pass

    def close(self) -> None:
        pass


class _Elsewhere(Handle):
    """The coordinator is another launcher's: the null member."""

    def start(self, deadline: Deadline) -> None:
        pass

    def alive(self) -> bool:
        return True

    def gone(self, member: str, reason: str) -> None:
        pass  # whoever takes its seat says so, or its closed door does

    def read(self) -> list[Command | News]:
        return []

    def stop(self, deadline: Deadline, stop: Stop | None = None) -> None:
        pass


class Visit(Survival):
    """The seats of a machine that joined."""

    def __init__(self, job: Job, policy: Policy, board: Board, place: Away) -> None:
        super().__init__(job, policy, board, place)
        self.handle = _Elsewhere(self.handle.setup)
        self._members = {seat_of(member): member for member in place.brief.members}
        self._away = place

    def open(self) -> None:
        pass

    def session(self, seat: int, seconds: float) -> Elastic:
        """In a forked worker: the second in a seat asks for an id of its own."""
        place = self._away
        member = self._members[seat] if self.seats[seat].starts == 1 else self._ask_again(seat)
        session = Elastic(member, place.address, place.brief.run, self.board, seconds, place.key(seat))
        session.gives_up = GIVES_UP
        return session

    def _ask_again(self, seat: int) -> str:
        try:
            brief = ask(self._away.address, self._away.key(seat), question(1, seat))
        except UsageError as error:
            raise Evicted(f"worker {seat} cannot come back: {error}") from None
        if seat_of(brief.members[0]) != seat:
            raise Evicted(f"worker {seat} cannot come back: its seat was taken by another")
        return brief.members[0]

    def founds(self, seat: int) -> bool:
        return False

    def lost(self, seat: int, reason: str, living: int, harmful: bool = False) -> bool:
        """Whether this machine goes on with what it has."""
        place = self.seats[seat]
        place.reasons.append(reason)
        again = place.starts <= self.policy.restarts and not self.over and not harmful
        step = int(self.board.read(seat)["step"])
        fate = f"it is started again ({place.starts} of {self.policy.restarts})" if again else "it stays away"
        self.losses.append(f"worker {seat} was lost ({reason}) in step {step}; {fate}")
        if again:
            place.due = Deadline.after(PAUSE)
        return again or living > 0


class VisitLauncher(LocalLauncher):
    """Runs the workers of a visit to their end, or to the end of the run they are in."""

    def __init__(self, job: Job, watcher: Watcher) -> None:
        super().__init__(job, watcher)
        self.ended: Report | None = None
        """What a worker said that came to the end of the run before its own."""
        self.left = self.hurried = False
        """Whether the user wanted this machine back; whether workers had to be killed for it."""

    def _survival(self, policy: Policy) -> Survival:
        assert isinstance(self.place, Away)
        return Visit(self.job, policy, self.board, self.place)

    def _waits(self, worker: Worker) -> bool:
        return self.board.read(worker.rank)["state"] <= State.starting

    def _survived(self, worker: Worker) -> bool:
        report = parse(worker.report)
        if report is not None and report.ended is not None and self.survival is not None:
            self.ended, self.survival.over = report, True
            return True
        return super()._survived(worker)

    def _ask_for_checkpoint(self) -> float:
        """What others keep is not this machine's to save; its workers leave after their step."""
        self.board.stop()
        for worker in self.workers:
            if worker.status is None and self._waits(worker):  # it makes no steps yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGINT)
        return LEAVE_GRACE

    def _end_all(self, at_once: bool = False) -> None:
        self.left = True
        super()._end_all(at_once)
        killed = [worker for worker in self.workers if worker.status == -signal.SIGKILL and not worker.lost]
        self.hurried = any(not self._waits(worker) for worker in killed)
