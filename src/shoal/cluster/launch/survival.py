"""What the launcher does when a worker is lost: the others go on, and another takes its seat.

    a worker dies of a signal ──> the coordinator is told ──> the others go on without it     (infrastructure's fault)
                              └─> a new worker in its seat, up to `restarts` times, else the seat stays empty
    a worker falls silent ─────> the coordinator gives it up ──> it is killed, and so on as above
    a worker's script raises ──> the run ends                                                    (the user's fault)

A run whose last worker is lost ends too: nobody is left who knows its state but the checkpoints.
"""

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from shoal.cluster.board import Board
from shoal.cluster.coordinator.channel import Stop
from shoal.cluster.coordinator.handle import Handle
from shoal.cluster.coordinator.process import Setup
from shoal.cluster.coordinator.wal import members
from shoal.cluster.launch.guests import Guests
from shoal.cluster.launch.job import Job
from shoal.cluster.launch.place import Place
from shoal.cluster.launch.policy import Policy
from shoal.cluster.membership.coordinator import LEFT, Rules
from shoal.cluster.membership.elastic import Elastic
from shoal.cluster.membership.log import Installed, Lost
from shoal.cluster.membership.session import member_name
from shoal.core.clock import Deadline, now
from shoal.core.events import Happened
from shoal.core.journal import Journal
from shoal.core.record import launcher_file

READY = 20.0
STARTS = 1_000_000
PAUSE = 0.2
"""Seconds before a seat is taken again: whatever killed the one before may still be at work."""


@dataclass
class Seat:
    """One worker after the other."""

    starts: int = 0
    """How often a worker was started in it."""
    due: Deadline | None = None
    """When the next one is."""
    reasons: list[str] = field(default_factory=list)


class Survival:
    """The coordinator of a run, and the seats of its workers."""

    def __init__(self, job: Job, policy: Policy, board: Board, place: Place) -> None:
        run, directory, workers = job.run, job.dir, job.workers
        self.run, self.policy, self.board, self._attempt = run, policy, board, job.attempt
        self.seats = {seat: Seat() for seat in job.seats}
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-"))  # mode 0700
        self.place, office = place, place.office(self.folder)
        log, rules = directory / "members.log", Rules(members=workers)
        setup = Setup(run, office.address, log, rules, office.lock, welcome=office.welcome)
        self.handle = Handle(setup, office.enter)
        self.losses: list[str] = []
        self.guests = Guests()
        self._silent: list[int] = []
        self._journal = Journal(launcher_file(directory))
        self._began = now()
        self.begun = False
        """Whether the founders have met."""
        self.stranded = False
        """Whether only newcomers are left, and nobody who knows the state."""
        self.over = False
        """Whether some worker has done its work: nobody new is needed."""

    def open(self) -> None:
        if self.handle.setup.log.exists():
            for member in members(self.handle.setup.log):
                self.handle.gone(member, "of an earlier attempt")
        self.handle.start(Deadline.after(READY))

    def name(self, seat: int) -> str:
        """Of the worker that was started last in a seat; no two of a run are alike, whatever the attempt."""
        return member_name(seat, self._attempt * STARTS + self.seats[seat].starts - 1)

    def started(self, seat: int) -> None:
        self.seats[seat].starts += 1
        self.seats[seat].due = None

    def session(self, seat: int, seconds: float) -> Elastic:
        """In a forked worker."""
        self.handle.forget()
        return Elastic(self.name(seat), self.handle.address, self.run, self.board, seconds, self.place.key(seat))

    def founds(self, seat: int) -> bool:
        """Whether the worker in a seat is one of those the run begins with."""
        return self.seats[seat].starts == 1

    def lost(self, seat: int, reason: str, living: int) -> bool:
        """A worker's process has ended, of `reason`; whether the run goes on."""
        self.tick_news()
        self.handle.gone(self.name(seat), reason)
        place = self.seats[seat]
        place.reasons.append(reason)
        again = place.starts <= self.policy.restarts and not self.over
        step = int(self.board.read(seat)["step"])
        if not self.begun or (living < max(1, self.policy.least) and not (again and living)):
            self._note(f"worker {seat} was lost ({reason}) in step {step}; {living} are left, and the run ends", step)
            return False
        what = f"is started again ({place.starts} of {self.policy.restarts})" if again else "stays away"
        self._note(f"worker {seat} was lost ({reason}) in step {step}; the others go on, and it {what}", step)
        if again:
            place.due = Deadline.after(PAUSE)
        return True

    def _note(self, text: str, step: int) -> None:
        self.losses.append(text)
        self._journal.emit(Happened(at=time.time(), text=text, planned="", second=now() - self._began, step=step))
        self._journal.flush()

    def tick(self) -> tuple[list[int], list[int]]:
        """Several times a second: seats to be taken again, and seats whose workers the others have given up."""
        if not self.handle.alive():
            self.handle.restart(Deadline.after(READY))
        self.handle.tick()
        self.tick_news()
        silent, self._silent = self._silent, []
        due = [n for n, seat in self.seats.items() if seat.due is not None and seat.due.expired and not self.over]
        return due, silent

    def tick_news(self) -> None:
        """What the coordinator has decided."""
        for said in self.handle.read():
            self.guests.hear(said)
            if isinstance(said, Installed):
                self.stranded = self.begun and not said.install.donor
                self.begun = True
            elif isinstance(said, Lost) and said.reason == LEFT:
                self.over = True
            elif isinstance(said, Lost):
                self._silent += [seat for seat in self.seats if self.name(seat) == said.member]

    @property
    def pending(self) -> bool:
        """Whether a worker is still to be started, or some of other machines to finish."""
        if self.over:
            return self.guests.finishing
        return any(seat.due is not None for seat in self.seats.values())

    def close(self, well: bool = True) -> None:
        """`well`: the training came to its end."""
        reason = "the training is over" if well else "it was stopped, or failed, where it began"
        self.handle.stop(Deadline.after(5.0), Stop(well=well, reason=reason))
        self._journal.close()
        shutil.rmtree(self.folder, ignore_errors=True)
