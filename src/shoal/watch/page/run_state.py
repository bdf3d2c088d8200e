"""One run as the page knows it: follows the files of its workers and keeps what a page draws, in bounded memory."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, isfinite
from operator import attrgetter
from pathlib import Path

import msgspec

from shoal.core import clock
from shoal.core.events import (
    AnyEvent,
    CheckpointSaved,
    GuardChecked,
    LabEventApplied,
    PlanSwitched,
    ResultsReported,
    StepFinished,
    StepSkipped,
    ValuesLogged,
    WarningRaised,
    WorkerEnded,
    WorkerEntered,
    WorkerLost,
    WorkersScaled,
    WorkerStarted,
)
from shoal.core.record import attempt_file, launcher_file, read_attempts, worker_file
from shoal.watch.page.recent import RecentSteps
from shoal.watch.page.sampling import MOST_PIECES, end_offset, is_large, sample, size_of
from shoal.watch.page.series import StepBlocks
from shoal.watch.record import RunRecord
from shoal.watch.tail import JournalTail
from shoal.watch.worker import WorkerRecord, WorkerTally, find_state

COLUMNS = ("seconds", "samples", "sent")
"""What is drawn by step of every worker."""
# Bounds what a page of a run of weeks takes in memory.
MOST_NAMES, MOST_NEWS = 48, 500
"""Logged scalars that are drawn; lines that are kept of what happened."""


_columns = attrgetter(*COLUMNS)


@dataclass
class WorkerFollower:
    """What is known of one worker."""

    rank: int
    tail: JournalTail
    tally: WorkerTally
    blocks: StepBlocks = field(default_factory=lambda: StepBlocks(len(COLUMNS)))
    recent: RecentSteps = field(default_factory=RecentSteps)
    counted: int = 0
    """Steps that were read."""
    front: int = 0
    """Steps it has made."""
    pieces: Iterator[AnyEvent] | None = None
    """Of a file that is sampled: what is still to be read before its end is followed."""
    attempt: int = 1

    @property
    def estimated(self) -> bool:
        return self.counted < self.front

    def record(self, finished: bool) -> WorkerRecord:
        """Totals; where steps were passed over, as if those had been like the others."""
        found = self.tally.totals()
        found.state = find_state(found, finished)
        if self.estimated and self.counted:
            # Only some pieces of a large file were read; the other steps are taken to be like these.
            share = self.front / self.counted
            sums = ("samples", "bytes_raw", "bytes_sent", "bytes_wire")
            scaled: dict[str, float] = {name: round(getattr(found, name) * share) for name in sums}
            found = msgspec.structs.replace(found, steps=self.front, seconds=found.seconds * share, **scaled)
        return found


class RunState:
    """Of one folder. `read` is called now and then; `version` grows when there was anything new."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self.version = 0
        self.live = False
        """Whether the run has a launcher now; set by the caller, which knows."""
        self._begin()

    def _begin(self) -> None:
        self.opened = RunRecord.open(self.dir)
        self._limits = [attempt.step for attempt in read_attempts(self.dir)]
        self.workers: dict[int, WorkerFollower] = {}
        self.scalars: dict[str, StepBlocks] = {}
        self.broken: dict[str, int] = {}
        """Scalar -> the first step at which it was no number."""
        self.reports: list[ResultsReported] = []
        self.saved: list[CheckpointSaved] = []
        self.guarded: list[tuple[int, GuardChecked]] = []
        """(worker, what its guard found)."""
        self.news: list[tuple[float, str, str]] = []
        """(when, kind, words) of what happened to members, in order of reading."""
        self.sampled = is_large([worker_file(self.dir, rank) for rank in self.opened.ranks])
        self._launcher = JournalTail(launcher_file(self.dir))
        self._sizes: dict[Path, int] = {}
        self.caught_up = False
        self.finished = False

    def read(self, seconds: float = 0.05) -> bool:
        """Take in what is new, for so long at the most; whether there was anything."""
        before, deadline = self.version, clock.now() + seconds
        if attempt_file(self.dir, len(self._limits) + 1).exists():
            self._begin()  # steps may have been taken back: all totals change
            self.version += 1
        done = True
        for rank in self.opened.ranks:
            done = self._follow(rank, deadline) and done
        self._read_launcher()
        if self.finished != (finished := self.opened.finished):
            self.finished, self.version = finished, self.version + 1
        if done and not self.caught_up:
            self.caught_up, self.version = True, self.version + 1
        return self.version > before

    def _follow(self, rank: int, deadline: float) -> bool:
        """Read on in one worker's file; whether its end was reached."""
        path = worker_file(self.dir, rank)
        worker = self._worker(rank, path)
        size = size_of(path)
        # Asked several times a second: a file that has not grown is not opened.
        if worker.pieces is None and self._sizes.get(path) == size:
            return True
        for event in self._events(worker):
            self._add(worker, event)
            self.version += 1
            # After each event: the generators keep their place for the next call.
            if clock.now() >= deadline:
                return False
        self._sizes[path] = size
        return True

    def _worker(self, rank: int, path: Path) -> WorkerFollower:
        if rank not in self.workers:
            worker = WorkerFollower(rank, JournalTail(path), WorkerTally(rank))
            if self.sampled and size_of(path):
                # Shared by all workers, so that a run of many takes no longer to read.
                pieces = min(512, MOST_PIECES // max(1, len(self.opened.ranks)))
                worker.tail.offset, worker.pieces = end_offset(path), sample(path, pieces)
            self.workers[rank] = worker
        return self.workers[rank]

    def _events(self, worker: WorkerFollower) -> Iterator[AnyEvent]:
        if worker.pieces is not None:
            for event in worker.pieces:  # noqa: UP028  (`yield from` would close it when a reader stops midway)
                yield event
            worker.pieces = None
        yield from worker.tail.read()

    def _is_taken_back(self, worker: WorkerFollower, event: AnyEvent) -> bool:
        """Whether a later attempt went on from a checkpoint before this step, and made it again."""
        if isinstance(event, WorkerStarted):
            worker.attempt = event.attempt
        return isinstance(event, StepFinished | ValuesLogged) and event.step >= min(
            self._limits[worker.attempt :], default=inf
        )

    def _add(self, worker: WorkerFollower, event: AnyEvent) -> None:
        if self._is_taken_back(worker, event):
            return
        worker.tally.add(event)
        match event:
            case StepFinished():
                self._add_step(worker, event)
            case ValuesLogged(step=step, steps=steps, values=values):
                for name, value in values.items():
                    self._add_scalar(name, step, steps, value)
            case ResultsReported():
                self.reports = [*self.reports[-MOST_NEWS:], event] if worker.rank == 0 else self.reports
            case CheckpointSaved():
                self.saved = [*self.saved[-MOST_NEWS:], event]
            case GuardChecked():
                self.guarded = [*self.guarded[-MOST_NEWS:], (worker.rank, event)]
            case _:
                if words := tell(worker.rank, event):
                    self._tell(event.at, *words)

    def _add_step(self, worker: WorkerFollower, event: StepFinished) -> None:
        worker.counted += event.steps
        worker.front = max(worker.front, event.step + event.steps)
        worker.blocks.add(event.step, event.steps, _columns(event))
        worker.recent.add(event)

    def _add_scalar(self, name: str, step: int, steps: int, value: float) -> None:
        # Told apart from the curve: a value that is no number cannot be drawn, and is what the user looks for.
        if not isfinite(value):
            self.broken.setdefault(name, step)
        if name not in self.scalars:
            if len(self.scalars) >= MOST_NAMES:
                return
            self.scalars[name] = StepBlocks(1)
        self.scalars[name].add(step, steps, [value * steps])

    def _read_launcher(self) -> None:
        for event in self._launcher.read():
            if words := tell(-1, event):
                self._tell(event.at, *words)
                self.version += 1

    def _tell(self, at: float, kind: str, words: str) -> None:
        self.news = [*self.news[-MOST_NEWS:], (at, kind, words)]

    @property
    def now(self) -> float:
        """The moment the page is of: this one while the run is live, else the end of its last step."""
        ends = [worker.recent.last.at for worker in self.workers.values() if worker.recent.last is not None]
        last = max(ends, default=self.opened.info.started)
        return max(last, time.time()) if self.live else last

    def records(self) -> list[WorkerRecord]:
        return [worker.record(self.finished) for _, worker in sorted(self.workers.items())]


def tell(rank: int, event: AnyEvent) -> tuple[str, str] | None:
    """(kind, words) of an event about members; None for others."""
    match event:
        case WorkerStarted(host=host, pid=pid, attempt=attempt):
            again = f", attempt {attempt}" if attempt > 1 else ""
            return "came", f"worker {rank} started on {host} (pid {pid}{again})"
        case WorkerEntered(step=step, seconds=seconds, why=why):
            return "came", f"worker {rank} entered in step {step} after {seconds:.1f} s{f' ({why})' if why else ''}"
        case WorkerEnded(exit="done", step=step):
            return "went", f"worker {rank} is done after {step} steps"
        case WorkerEnded(exit="left", step=step):
            return "went", f"worker {rank} left after {step} steps, as the user asked"
        case WorkerEnded(error=error):
            return "failed", f"worker {rank} failed: {error}"
        case WorkerLost(text=text):
            return "lost", text
        case WarningRaised(text=text):
            return "warned", f"worker {rank}: {text}" if rank >= 0 else text
        case StepSkipped(step=step, workers=guilty):
            whose = ", ".join(f"worker {one}" for one in guilty) or "no single worker"
            return "warned", f"step {step} was skipped: gradients of {whose} are not finite"
        case PlanSwitched(step=step, plan=plan) if rank == 0:
            return "plan", f"from step {step} on the plan is {plan}"
        case WorkersScaled(text=text):
            return "asked", text
        case LabEventApplied(text=text):
            return "lab", text
    return None
