"""Worker 0 writes the run's ledger: the samples that each completed step consumed.

Consecutive steps of one pass are one entry. Entries end at checkpoints, so that a resumed run can withdraw whole ones.
If workers may be lost, every worker keeps the same entries in memory (its book); a worker that becomes worker 0
withdraws what was written since it joined, and writes it again from its book.

Neither book nor file grows with the number of steps: consecutive ranges are merged, except at the last checkpoints and
where the book of a member begins.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import msgspec

from shoal.core.clock import now
from shoal.core.ledger import (
    AnyEntry,
    PassFinished,
    PassOpened,
    RunResumed,
    SamplesTaken,
    committed,
    follows,
    join_ranges,
    last_step,
    ledger_file,
    merged,
    read_ledger,
    rewrite_ledger,
)
from shoal.core.log import ChecksummedLog
from shoal.data.loader_pass import LoaderPass
from shoal.data.remaining import joined
from shoal.data.source.base import LoaderStep

FLUSH_SECONDS = 0.5
KEPT = 8
"""Checkpoints from which a run might resume; two are kept on disk."""
MOST_ENTRIES, MOST_BYTES = 10_000, 8 << 20
"""Of the book and of the file, before old entries are merged."""


class LedgerWriter:
    """Appends to the ledger in `directory`; used by the training thread, except `sync`."""

    def __init__(
        self,
        directory: Path,
        writes: Callable[[], bool] = lambda: True,
        fence: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        """`writes`: whether this worker writes; `fence`: attempt and generation of the view, at this moment."""
        self._directory, self._writes, self._now = directory, writes, fence
        self._fence = (0, 0)
        """Attempt and generation at which this worker began to write."""
        self._log: ChecksummedLog | None = None
        self._since = (0, 1, 1)
        """Step, attempt and workers where this worker's book begins."""
        self._book: list[AnyEntry] = []
        self._joins: dict[tuple[object, int], int] = {}
        """Pass and stream -> entry of the book that the next range may extend."""
        self._cuts: list[int] = []
        """Steps at which the book of some worker begins."""
        self._saved: deque[int] = deque(maxlen=KEPT)
        """Steps of the last checkpoints."""
        self._long, self._large = MOST_ENTRIES, MOST_BYTES
        """Entries of the book, and bytes of the file, at which they are merged next."""
        self._lock = threading.Lock()
        """Held while the file is synced or replaced."""
        self._encoder = msgspec.json.Encoder()
        self._pending: list[_PendingBatch] = []
        self._entries: list[AnyEntry] = []
        self._opened: set[tuple[int, int, int]] = set()
        self._flushed = now()
        self.error: str | None = None
        """Why the last attempt to write failed; its entries are kept for the next one."""

    def begin(self, step: int, attempt: int, workers: int) -> None:
        """Begin this worker's book; entries after `step` are void."""
        self._since = (step, attempt, workers)
        self._book, self._joins, self._cuts = [], {}, []
        # a run that begins anew has nothing to withdraw
        if step or attempt > 1:
            self._entries.append(RunResumed(step=step, attempt=attempt, workers=workers))
        if self._writes():
            self._open_log()
        self.flush()

    def cut(self, step: int) -> None:
        """End all entries at this step, because the book of a new member begins after it."""
        self._cuts.append(step)
        self._end_entries()

    def saved(self, step: int) -> bool:
        """End all entries at this step, because a checkpoint is taken there. Return whether they are written."""
        self._saved.append(step)
        return self._end_entries()

    def _end_entries(self) -> bool:
        written = self.flush()
        # later ranges begin entries of their own, because a resumed run withdraws whole ones
        self._joins.clear()
        if len(self._book) > self._long:
            self._book = merged(self._book, self._boundaries())
            self._long = max(MOST_ENTRIES, 2 * len(self._book))
        return written

    def _boundaries(self) -> list[int]:
        return sorted({*self._cuts, *self._saved})

    def dealt(self, run: LoaderPass, step: LoaderStep) -> None:
        self._pending.append(_PendingBatch(run, step))

    def returned(self, step: LoaderStep, places: Iterable[int]) -> None:
        """Note that these samples of a batch were not consumed and will be dealt again."""
        for dealt in self._pending:
            dealt.returned.update(places if dealt.step is step else ())

    def skipped(self, step: LoaderStep, places: Iterable[int]) -> None:
        """Note that the script skipped these samples of a batch."""
        for dealt in self._pending:
            dealt.skipped.update(places if dealt.step is step else ())

    def drop(self, steps: Sequence[LoaderStep]) -> None:
        """Forget batches that no step consumed."""
        self._pending = [dealt for dealt in self._pending if all(dealt.step is not step for step in steps)]

    def forget(self, run: LoaderPass) -> None:
        """Forget the batches of a pass that no step consumed."""
        self._pending = [dealt for dealt in self._pending if dealt.run is not run]

    def commit(self, number: int, skipped_only: bool = False, of: Sequence[LoaderStep] | None = None) -> None:
        """Enter step `number` (from 1): it consumed all batches dealt since the last one, or the batches `of`.

        `skipped_only`: no worker makes this step; only the skipped samples are recorded.
        """
        chosen = None if of is None else {id(step) for step in of}
        made = [dealt for dealt in self._pending if chosen is None or id(dealt.step) in chosen]
        for dealt in made:
            if skipped_only:
                dealt.returned.update(set(dealt.places) - dealt.skipped)
            dealt.run.trained = True
            self._open(dealt.run)
            at = _place(dealt.run)
            for begin, end, samples, skipped in dealt.parts():
                took = SamplesTaken(
                    **at, stream=dealt.step.stream, first=number, last=number, begin=begin, end=end, samples=samples,
                    skipped=skipped,
                )  # fmt: skip
                self._take(took)
        self._pending = [dealt for dealt in self._pending if chosen is not None and id(dealt.step) not in chosen]
        if now() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def _open(self, run: LoaderPass) -> None:
        _, items, _ = run.loader.facts
        opened = PassOpened(**_place(run), items=items)
        if opened.key not in self._opened:
            self._opened.add(opened.key)
            self._entries.append(opened)
            self._book.append(opened)

    def _take(self, took: SamplesTaken) -> None:
        """Enter a range into the book, joined to the one before if it follows it."""
        place = self._joins.get((took.key, took.stream))
        before = self._book[place] if place is not None else None
        if place is not None and isinstance(before, SamplesTaken) and follows(before, took):
            self._book[place] = join_ranges(before, took)
        else:
            self._joins[took.key, took.stream] = len(self._book)
            self._book.append(took)
        self._entries.append(took)

    def finished(self, run: LoaderPass, number: int) -> None:
        # a pass that no step was made of, as an evaluation, is not listed
        if run.trained:
            finished = PassFinished(**_place(run), step=number, drops=run.loader.facts[2])
            self._entries.append(finished)
            self._book.append(finished)

    def flush(self) -> bool:
        """Write all entries to the file. False, with the reason in `error`, if that failed."""
        self._flushed = now()
        self._entries = merged(self._entries, self._boundaries())
        if not self._writes():
            self._entries.clear()
            return True
        try:
            if self._log is None:
                self._take_over()
            log = self._open_log()
            while self._entries:
                log.append(self._encoder.encode(msgspec.structs.replace(self._entries[0], fence=self._fence)))
                # one by one: what could not be written stays for the next flush
                del self._entries[0]
        except OSError as error:
            self.error = error.strerror or str(error)
            return False
        self.error = None
        if log.size > self._large:
            self._rewrite()
        return True

    def _rewrite(self) -> None:
        """Merge the entries of the file; if that fails, the file stays as it is."""
        if not self._lock.acquire(blocking=False):  # a checkpoint is syncing the file; the next flush tries again
            return
        try:
            # first: if merging fails, the next flush must not try again at once
            self._large = 2 * self._large
            kept = merged(committed(read_ledger(self._directory)), self._boundaries(), self._since[0])
            # withdraws nothing, but fences off an earlier writer that was stopped and wakes up
            step, (attempt, _) = last_step(kept), self._fence
            kept.append(RunResumed(step=step, attempt=attempt, workers=self._since[2], fence=self._fence))
            rewrite_ledger(self._directory, kept)
            if self._log is not None:
                self._log.close()
            self._log = ChecksummedLog(ledger_file(self._directory))
            self._large = max(MOST_BYTES, 2 * self._log.size)
        except OSError as error:
            self.error = error.strerror or str(error)
        finally:
            self._lock.release()

    def _take_over(self) -> None:
        step, attempt, workers = self._since
        self._entries = [RunResumed(step=step, attempt=attempt, workers=workers), *self._book]

    def _open_log(self) -> ChecksummedLog:
        if self._log is None:
            # readers use the fence to leave out what an earlier writer adds when it wakes up
            self._log, self._fence = ChecksummedLog(ledger_file(self._directory)), self._now()
        return self._log

    def sync(self) -> None:
        """Return when all flushed entries are durable. Called by the checkpoint's thread."""
        with self._lock:
            if self._log is not None:
                self._log.sync()

    def close(self) -> None:
        self.flush()
        if self._log is not None:
            self._log.close()


@dataclass
class _PendingBatch:
    """One batch of all workers that no step has consumed yet."""

    run: LoaderPass
    step: LoaderStep
    returned: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)

    def parts(self) -> Iterator[tuple[int, int, int, bool]]:
        """Yield begin, end and samples of every range, and whether it was skipped."""
        total = sum(self.step.counts)
        # nearly every batch: single samples need not be looked at
        if not self.returned and not self.skipped and len(self.step.ranges) == 1:
            yield *self.step.ranges[0], total, False
            return
        for kind in (False, True):
            mine = [p for p in self.places if p not in self.returned and (p in self.skipped) is kind]
            for begin, end in joined((p, p + 1) for p in mine):
                yield begin, end, total * (end - begin) // len(self.places), kind

    @property
    def places(self) -> list[int]:
        return [place for begin, end in self.step.ranges for place in range(begin, end)]


class _PassPlace(TypedDict):
    loader: int
    epoch: int
    number: int


def _place(run: LoaderPass) -> _PassPlace:
    return {"loader": run.loader.facts[0], "epoch": run.turn.epoch, "number": run.turn.number}
