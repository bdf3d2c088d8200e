"""Worker 0 writes the run's ledger: what each step consumed, once the step is made.

Steps that follow each other in one pass become one entry; entries end where a checkpoint is taken, so that a run that
goes on from there can take back whole ones. Where worker 0 may be lost, all keep the book: whoever becomes worker 0
takes back what stands there since it came, and writes it again from its own.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import msgspec

from shoal.core.clock import now
from shoal.core.ledger import AnyEntry, Finished, Opened, Resumed, Took, ledger_file
from shoal.core.log import Log
from shoal.data.loader import Pass
from shoal.data.remaining import joined
from shoal.data.source.base import Step

FLUSH_SECONDS = 0.5


class Ledger:
    """Appends to the ledger in `directory`; used by the training thread, except `sync`."""

    def __init__(
        self,
        directory: Path,
        writes: Callable[[], bool] = lambda: True,
        fence: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        """`writes`: whether this worker is the one to write; `fence`: attempt and epoch of the view, at this moment."""
        self._file, self._writes, self._now = ledger_file(directory), writes, fence
        self._fence = (0, 0)
        """When this worker began to write."""
        self._log: Log | None = None
        self._since = (0, 1, 1)
        """Step, attempt and workers at the beginning of what this worker knows."""
        self._book: list[AnyEntry] = []
        self._encoder = msgspec.json.Encoder()
        self._pending: list[_Dealt] = []
        self._entries: list[AnyEntry] = []
        self._opened: set[tuple[int, int, int]] = set()
        self._cut = False
        self._flushed = now()
        self.error: str | None = None
        """Why the last attempt to write failed; what was to be written is kept for the next."""

    def begin(self, step: int, attempt: int, workers: int) -> None:
        """This worker's book begins here; what stands in the ledger after `step` is void."""
        self._since = (step, attempt, workers)
        self._book = []
        if step or attempt > 1:
            self._entries.append(Resumed(step=step, attempt=attempt, workers=workers))
        if self._writes():
            self._open_log()
        self.flush()

    def cut(self) -> None:
        """Somebody's book begins now: no entry goes on beyond this step."""
        self.flush()
        self._cut = True

    def dealt(self, run: Pass, step: Step) -> None:
        self._pending.append(_Dealt(run, step))

    def returned(self, step: Step, places: Iterable[int]) -> None:
        """Of what was dealt, these were not consumed, and are dealt again."""
        for dealt in self._pending:
            dealt.returned.update(places if dealt.step is step else ())

    def skipped(self, step: Step, places: Iterable[int]) -> None:
        """Of what was dealt, these were skipped by the script."""
        for dealt in self._pending:
            dealt.skipped.update(places if dealt.step is step else ())

    def forget(self, run: Pass) -> None:
        """The rest of a pass was looked at, and no step was made of it."""
        self._pending = [dealt for dealt in self._pending if dealt.run is not run]

    def commit(self, number: int, skipped_only: bool = False) -> None:
        """Step `number` (counted from 1) was made of all that was dealt since the one before.

        `skipped_only`: nobody makes another step of it, but what was skipped is on record.
        """
        for dealt in self._pending:
            if skipped_only:
                dealt.returned.update(set(dealt.places) - dealt.skipped)
            dealt.run.trained = True
            self._open(dealt.run)
            at = _place(dealt.run)
            for begin, end, samples, skipped in dealt.parts():
                took = Took(
                    **at, stream=dealt.step.stream, first=number, last=number, begin=begin, end=end, samples=samples,
                    skipped=skipped,
                )  # fmt: skip
                self._take(took)
        self._pending.clear()
        if now() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def _open(self, run: Pass) -> None:
        _, items, _ = run.loader.facts
        opened = Opened(**_place(run), items=items)
        if opened.key not in self._opened:
            self._opened.add(opened.key)
            self._entries.append(opened)
            self._book.append(opened)

    def _take(self, took: Took) -> None:
        for entries in (self._entries, self._book):
            last = entries[-1] if entries else None
            if isinstance(last, Took) and _goes_on(last, took) and not (self._cut and entries is self._book):
                samples = last.samples + took.samples
                entries[-1] = msgspec.structs.replace(last, end=took.end, samples=samples, last=took.last)
            else:
                entries.append(took)
        self._cut = False

    def finished(self, run: Pass, number: int) -> None:
        if run.trained:
            finished = Finished(**_place(run), step=number, drops=run.loader.facts[2])
            self._entries.append(finished)
            self._book.append(finished)

    def flush(self) -> bool:
        """Hand all entries to the operating system; False, with the reason in `error`, if it did not take them."""
        self._flushed = now()
        if not self._writes():
            self._entries.clear()
            return True
        try:
            if self._log is None:
                self._take_over()
            log = self._open_log()
            while self._entries:
                log.append(self._encoder.encode(msgspec.structs.replace(self._entries[0], fence=self._fence)))
                del self._entries[0]
        except OSError as error:
            self.error = error.strerror or str(error)
            return False
        self.error = None
        return True

    def _take_over(self) -> None:
        step, attempt, workers = self._since
        self._entries = [Resumed(step=step, attempt=attempt, workers=workers), *self._book]

    def _open_log(self) -> Log:
        if self._log is None:
            self._log, self._fence = Log(self._file), self._now()
        return self._log

    def sync(self) -> None:
        """Return when what was flushed is durable; the checkpoint's thread asks."""
        if self._log is not None:
            self._log.sync()

    def close(self) -> None:
        self.flush()
        if self._log is not None:
            self._log.close()


@dataclass
class _Dealt:
    """One batch of all workers that no step has been made of yet."""

    run: Pass
    step: Step
    returned: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)

    def parts(self) -> Iterator[tuple[int, int, int, bool]]:
        """Begin, end and samples of every range that was consumed or skipped, and which of the two."""
        total = sum(self.step.counts)
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


def _goes_on(last: Took, took: Took) -> bool:
    return (last.key, last.stream, last.end, last.skipped) == (took.key, took.stream, took.begin, took.skipped)


class _Place(TypedDict):
    loader: int
    epoch: int
    number: int


def _place(run: Pass) -> _Place:
    return {"loader": run.loader.facts[0], "epoch": run.turn.epoch, "number": run.turn.number}
