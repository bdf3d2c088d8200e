"""`shoal join`: workers of this machine in a run that was started on another."""

import contextlib
import os
import signal

from shoal.core.clock import Deadline
from shoal.core.errors import Evicted, UsageError
from shoal.hosts.status_board import StatusBoard, WorkerState
from shoal.launch.failures import WorkerProcess, parse
from shoal.launch.job import JobWatcher, LaunchJob
from shoal.launch.join_request import ask, question
from shoal.launch.local import LocalLauncher
from shoal.launch.policy import LossPolicy
from shoal.launch.remote_placement import RemotePlacement
from shoal.launch.supervisor import PAUSE, RunSupervisor
from shoal.launch.worker import FailureReport
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.handle import CoordinatorHandle
from shoal.membership.launcher_channel import Command, News, StopCoordinator
from shoal.membership.session import slot_of

LEAVE_GRACE = 60.0
"""Seconds in which workers may finish the step they are in."""

GIVES_UP = 30.0
"""Seconds without a message from the coordinator after which a worker outside the view stops waiting."""


class _OtherCoordinator(CoordinatorHandle):
    """The coordinator is another launcher's: the null member."""

    def start(self, deadline: Deadline) -> None:
        pass

    def alive(self) -> bool:
        return True

    def gone(self, member: str, reason: str) -> None:
        pass  # the next worker in its slot reports the loss, or its closed endpoint does

    def read(self) -> list[Command | News]:
        return []

    def stop(self, deadline: Deadline, stop: StopCoordinator | None = None) -> None:
        pass


class RemoteSupervisor(RunSupervisor):
    """The slots of a machine that joined."""

    def __init__(self, job: LaunchJob, policy: LossPolicy, board: StatusBoard, place: RemotePlacement) -> None:
        super().__init__(job, policy, board, place)
        self.handle = _OtherCoordinator(self.handle.setup)
        self._members = {slot_of(member): member for member in place.brief.members}
        self._away = place

    def open(self) -> None:
        pass

    def session(self, slot: int, seconds: float) -> ElasticSession:
        """In a forked worker: the second in a slot asks for an id of its own."""
        place = self._away
        member = self._members[slot] if self.slots[slot].starts == 1 else self._ask_again(slot)
        # a founder gives up too: the launcher of the run may end before it has begun
        return ElasticSession(
            member, place.address, place.brief.run, self.board, seconds, place.key(slot), coordinator_timeout=GIVES_UP
        )

    def _ask_again(self, slot: int) -> str:
        try:
            brief = ask(self._away.address, self._away.key(slot), question(1, slot))
        except UsageError as error:
            raise Evicted(f"worker {slot} cannot come back: {error}") from None
        if slot_of(brief.members[0]) != slot:
            raise Evicted(f"worker {slot} cannot come back: its slot was taken by another")
        return brief.members[0]

    def founds(self, slot: int) -> bool:
        return self._away.brief.founding and self.slots[slot].starts == 1

    def never_entered(self) -> list[str]:
        """Nothing: views are told to the launcher of the run, and not to this one."""
        return []

    def lost(self, slot: int, reason: str, living: int, harmful: bool = False) -> bool:
        """Whether this machine goes on with what it has."""
        place = self.slots[slot]
        place.reasons.append(reason)
        again = place.starts <= self.policy.restarts and not self.over and not harmful
        step = int(self.board.read(slot)["step"])
        fate = f"it is started again ({place.starts} of {self.policy.restarts})" if again else "it stays away"
        self.losses.append(f"worker {slot} was lost ({reason}) in step {step}; {fate}")
        if again:
            place.due = Deadline.after(PAUSE)
        return again or living > 0


class RemoteLauncher(LocalLauncher):
    """Runs the workers of a visit to their end, or to the end of the run they are in."""

    def __init__(self, job: LaunchJob, watcher: JobWatcher) -> None:
        super().__init__(job, watcher)
        self.ended: FailureReport | None = None
        """What a worker said that came to the end of the run before its own."""
        self.left = self.hurried = False
        """Whether the user wanted this machine back; whether workers had to be killed for it."""

    def _make_supervisor(self, policy: LossPolicy) -> RunSupervisor:
        assert isinstance(self.place, RemotePlacement)
        return RemoteSupervisor(self.job, policy, self.board, self.place)

    def _waits(self, worker: WorkerProcess) -> bool:
        return self.board.read(worker.rank)["state"] <= WorkerState.starting

    def _survived(self, worker: WorkerProcess) -> bool:
        report = parse(worker.report)
        if report is not None and report.ended is not None and self.supervisor is not None:
            self.ended = report
            self.supervisor.finish()
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
