"""What the launcher does when a worker is lost: the others go on, and another worker takes its slot."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from shoal.core.clock import Deadline
from shoal.core.errors import ShoalError
from shoal.core.event_sink import RunEvent
from shoal.hosts.status_board import StatusBoard
from shoal.launch.job import LaunchJob
from shoal.launch.launcher_record import LauncherRecord
from shoal.launch.placement import WorkerPlacement
from shoal.launch.policy import LossPolicy
from shoal.launch.remote_workers import RemoteWorkers
from shoal.launch.run_requests import ScaleRequest
from shoal.launch.scaling import WorkerScaling, WorkerSlot
from shoal.launch.service_channel import ServiceView
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.handle import CoordinatorOutage
from shoal.membership.launcher_channel import CoordinatorFailed, ReplicaHeld, StopCoordinator
from shoal.membership.log_entries import LEFT, LEFT_EARLY, MemberLost, ViewInstalled
from shoal.membership.plan_requests import PreparePlan
from shoal.membership.session import member_name, slot_of, start_of
from shoal.membership.wal import Written, members, read

READY = 20.0
"""Seconds in which the coordinator's process must answer."""
STARTS = 1_000_000
"""Names count starts from attempt * STARTS, so that no two attempts of a run share a name."""
PAUSE = 0.2
"""Seconds before a slot is taken again: whatever killed the one before may still be at work."""


class RunSupervisor:
    """The coordinator of a run, and the slots of its workers."""

    def __init__(self, job: LaunchJob, policy: LossPolicy, board: StatusBoard, place: WorkerPlacement) -> None:
        run, directory, workers = job.run, job.dir, job.workers
        self.run, self.policy, self.board, self._attempt = run, policy, board, job.attempt
        self.slots = {slot: WorkerSlot() for slot in job.slots}
        self.scaling = WorkerScaling(self.slots, 0 if job.remote_slots else job.capacity, board)
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-"))  # mode 0700
        self.place, self.handle = place, place.make_coordinator(run, directory, workers, self.folder)
        self.losses: list[str] = []
        self.members: tuple[int, ...] = ()
        """Slots of the present view, in order of rank."""
        self.remote_workers, self.outage = RemoteWorkers(), CoordinatorOutage()
        self._silent: list[int] = []
        self._entered: set[str] = set()
        """The workers that were in a view."""
        self._generation = 0
        """Of the newest view that is known here."""
        self.view = ServiceView()
        """That view, as services are told of it."""
        self._record = LauncherRecord(directory, job.attempt)
        self.begun = False
        """Whether the founders have met."""
        self.stranded = False
        """Whether only newcomers are left, and no worker that has the state."""
        self.plan = self.asked = self.switched = ""
        """The plan of the view, once it was switched; tokens of the switch that is asked for, and of the last one."""
        self._wanted = ""
        self.switches = 0
        """How often the plan of the view was switched."""
        self._questions: list[PreparePlan] = []
        self.over = False
        """Whether a worker has done its work, so that no new ones are needed."""

    def open(self) -> None:
        if self.handle.setup.log.exists():
            for member in members(self.handle.setup.log):
                # the log still lists them as members, and they will never be heard again
                self.handle.gone(member, "of an earlier attempt")
            self._generation = max(
                (e.install.view.generation for e in self._log() if isinstance(e, ViewInstalled)), default=0
            )
        self.handle.start(Deadline.after(READY))

    def name(self, slot: int) -> str:
        """Of the worker that was started last in a slot; no two of a run are alike, whatever the attempt."""
        return member_name(slot, self._attempt * STARTS + self.slots[slot].starts - 1)

    def started(self, slot: int) -> None:
        self.slots[slot].starts += 1
        self.slots[slot].due = None
        self.board.let_stay(slot)  # here and not in the worker: it may be asked to leave before it looks

    def session(self, slot: int, seconds: float) -> ElasticSession:
        """In a forked worker."""
        self.handle.forget()
        return ElasticSession(self.name(slot), self.handle.address, self.run, self.board, seconds, self.place.key(slot))

    def founds(self, slot: int) -> bool:
        """Whether the worker in a slot is one of those the run begins with."""
        return self.slots[slot].starts == 1 and slot in self.scaling.founders

    def lost(self, slot: int, reason: str, living: int, harmful: bool = False) -> bool:
        """A worker's process has ended, of `reason`; whether the run goes on. A harmful one is not started again."""
        self.tick_news()
        self.handle.gone(self.name(slot), reason)
        place = self.slots[slot]
        place.reasons.append(reason)
        asked = self.scaling.ended(slot)
        # Starts that the user asked for do not count as restarts.
        again = place.starts - place.excused <= self.policy.restarts and not (self.over or harmful or asked)
        # Before the founders have met no worker has a state, so there is nothing to go on with.
        if not self.begun or (living < max(1, self.policy.least) and not (again and living)):
            self._note(slot, reason, f"{living} are left, and the run cannot go on")
            return False
        if again:
            place.due = Deadline.after(PAUSE)
            fate = f"is started again ({place.starts - place.excused} of {self.policy.restarts})"
        elif self.over or asked:
            fate = "stays away"
        else:
            place.quarantined = reason if harmful else tally(place.reasons)
            fate = f"is quarantined: {place.quarantined}"
        self._note(slot, reason, f"the others go on, and it {fate}", place.quarantined)
        return True

    def _note(self, slot: int, reason: str, what: str, quarantined: str = "") -> None:
        step = int(self.board.read(slot)["step"])
        text = f"worker {slot} was lost ({reason}) in step {step}; {what}"
        self.losses.append(text)
        self._record.note_loss(text, slot, reason, step, quarantined)

    def tick(self) -> tuple[list[int], list[int]]:
        """Several times a second: slots to be taken again, and slots whose workers the others have given up."""
        if not self.begun and self.place.expects != self.handle.setup.rules.remote:
            self.handle.expect(self.place.expects)
        if not self.handle.alive():
            self.tick_news()
            # Its backoff says when: a full disk would only fail again at once.
            if self.outage.over:
                self._restart()
        self.handle.tick()
        self.tick_news()
        silent, self._silent = self._silent, []
        due = [n for n, slot in self.slots.items() if slot.due is not None and slot.due.expired and not self.over]
        return due, silent

    def _restart(self) -> None:
        try:
            self.handle.restart(Deadline.after(READY))
        except ShoalError as error:
            self.outage.failed(str(error), self.handle.setup.log)
            return
        for entry in self._log():  # what the one before it had decided, and no time to tell
            self._hear(entry)

    def switch(self, plan: str, token: str) -> None:
        """The user wants another plan."""
        self._wanted, self.asked = plan, token
        self.handle.switch(plan)

    def scale(self, request: ScaleRequest, why: str = "") -> str:
        """The user wants more workers, or fewer; returns what is done about it, in words."""
        request = self.scaling.resolve(request, self.policy.least)
        added, removed = self.scaling.begin(request)
        verbs = ((added, "added"), (removed, "asked to leave after a step"))
        said = [f"{named(slots)} {_is(slots)} {verb}" for slots, verb in verbs if slots]
        if (missing := request.add - len(added)) > 0:
            said.append(f"{missing} more would need memory of their own: start the run with --spare {missing} or more")
        if not said:  # a script asks again, as after a loss
            return ""
        text = "; ".join([*said, *filter(None, [why])])
        self._record.note_scaled(text, added, removed)
        return text

    def released(self, slot: int) -> bool:
        """A worker's process has ended well; whether because the user took it out."""
        return self.scaling.ended(slot)

    def _follow_plan(self, plan: str) -> None:
        self.plan = plan
        self.handle.switched(plan)
        if self.asked and plan == self._wanted:
            self.asked, self.switched = "", self.asked

    def take_questions(self) -> list[PreparePlan]:
        """What the coordinator has asked to be prepared, since the last call."""
        questions, self._questions = self._questions, []
        return questions

    def finish(self) -> None:
        """Note that a worker has done its work, so that no more are started."""
        self.over = True

    def notes(self) -> list[str]:
        """What the user is to be told since the last time, a line each."""
        note, self.outage.note = self.outage.note, ""
        return [*self.remote_workers.take(), *filter(None, [note])]

    def accuse(self, member: str, reason: str) -> None:
        """A service says that a member breaks its protocol. A worker of this machine fails by itself."""
        if self.remote_workers.is_here(member):
            self.handle.gone(member, reason)

    def tick_news(self) -> None:
        """What the coordinator has decided."""
        for said in self.handle.read():
            self._hear(said)
        self.scaling.settle(self.members)

    def _hear(self, said: object) -> None:
        """Take in a decision; one that is known already, or of an earlier attempt, changes nothing."""
        self.remote_workers.hear(said)
        if isinstance(said, ViewInstalled) and said.install.view.generation > self._generation:
            self._generation = said.install.view.generation
            self.stranded = self.begun and not said.install.donor
            self.begun = True
            if not self.stranded:  # members of a view without any state have not entered the training
                self._entered.update(said.install.view.members)
            self.members = tuple(slot_of(member) for member in said.install.view.members)
            self.view = ServiceView(self._generation, said.install.view.members, said.install.infos)
            self.switches = said.install.view.switches
            self._follow_plan(said.install.view.plan)
        elif isinstance(said, PreparePlan):
            self._questions.append(said)
        elif isinstance(said, CoordinatorFailed):
            self.outage.failed(said.reason, self.handle.setup.log)
        elif isinstance(said, ReplicaHeld):
            self._record.note_remote_end(slot_of(said.member), said.step, said.fingerprint)
        elif isinstance(said, MemberLost) and said.reason == LEFT:
            # of this attempt: the log tells of earlier ones too
            self.over = self.over or start_of(said.member) // STARTS == self._attempt
        elif isinstance(said, MemberLost) and said.reason != LEFT_EARLY:  # one that leaves ends by itself
            # By name: an older worker of the same slot may be lost a second time.
            self._silent += [slot for slot in self.slots if self.name(slot) == said.member]

    def _log(self) -> list[Written]:
        return read(self.handle.setup.log)[0]

    @property
    def pending(self) -> bool:
        """Whether a worker is still to be started, or some of other machines to finish."""
        if self.over:
            return self.remote_workers.finishing
        return any(slot.due is not None for slot in self.slots.values())

    def never_entered(self) -> list[str]:
        """A line for every worker that was started again and is in no view, now that the run is over."""
        self.tick_news()
        waited = [slot for slot, place in self.slots.items() if not self.founds(slot) and place.due is None]
        lines = [
            f"worker {slot} was started again and did not enter the run: there was no moment between two steps for it"
            for slot in waited
            if self.name(slot) not in self._entered and not self.slots[slot].quarantined
        ]
        for line in lines:
            self._record.warn(line)
        return lines

    def warn(self, text: str) -> None:
        """Write a line into the run's record."""
        self._record.warn(text)

    def record(self, event: RunEvent) -> None:
        """Write an event into the run's record."""
        self._record.write(event)

    def close(self, well: bool = True) -> None:
        """`well`: the training came to its end."""
        reason = "the training is over" if well else "it was stopped, or failed, where it began"
        self.tick_news()
        self.handle.stop(Deadline.after(5.0), StopCoordinator(well=well, reason=reason))
        self._record.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def named(slots: Sequence[int]) -> str:
    """`worker 3`, `workers 3, 4`."""
    return f"worker{'s' if len(slots) > 1 else ''} {', '.join(map(str, slots))}"


def _is(slots: Sequence[int]) -> str:
    return "are" if len(slots) > 1 else "is"


def tally(reasons: Sequence[str]) -> str:
    """`oom 3 times, SIGKILL`: what came how often."""
    return ", ".join(f"{reason} {n} times" if n > 1 else reason for reason, n in Counter(reasons).items())
