"""Worker 0 writes the run's ledger: what each step consumed, once the step is made.

Steps that follow each other in one pass become one entry; entries end where a checkpoint is taken, so that a run that
goes on from there can take back whole ones.
"""

from collections.abc import Sequence
from pathlib import Path

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

    def __init__(self, directory: Path) -> None:
        self._log = Log(ledger_file(directory))
        self._encoder = msgspec.json.Encoder()
        self._pending: list[tuple[Pass, Step]] = []
        self._entries: list[AnyEntry] = []
        self._opened: set[tuple[int, int, int]] = set()
        self._flushed = now()
        self.error: str | None = None
        """Why the last attempt to write failed; what was to be written is kept for the next."""

    def resumed(self, step: int, attempt: int, workers: int) -> None:
        self._entries.append(Resumed(step=step, attempt=attempt, workers=workers))
        self.flush()

    def dealt(self, run: Pass, step: Step) -> None:
        self._pending.append((run, step))

    def returned(self, run: Pass, step: Step, places: Sequence[int]) -> None:
        """Of what was dealt, a lost worker's part was not consumed."""
        gone = set(places)
        kept = [p for begin, end in step.ranges for p in range(begin, end) if p not in gone]
        share = sum(step.counts) * len(kept) // max(1, len(kept) + len(gone))
        trimmed = step._replace(ranges=joined((p, p + 1) for p in kept), counts=(share,), batch=None)
        self._pending = [(r, trimmed if r is run and s is step else s) for r, s in self._pending]

    def forget(self, run: Pass) -> None:
        """The rest of a pass was looked at, and no step was made of it."""
        self._pending = [(other, step) for other, step in self._pending if other is not run]

    def commit(self, number: int) -> None:
        """Step `number` (counted from 1) was made of all that was dealt since the one before."""
        for run, step in self._pending:
            run.trained = True
            self._open(run)
            each, place = step.ranges, {**_place(run), "stream": step.stream, "first": number, "last": number}
            for begin, end in each:
                share = sum(step.counts) if len(each) == 1 else end - begin
                self._take(Took(**place, begin=begin, end=end, samples=share))
        self._pending.clear()
        if now() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def _open(self, run: Pass) -> None:
        _, items, _ = run.loader.facts
        opened = Opened(**_place(run), items=items)
        if opened.key not in self._opened:
            self._opened.add(opened.key)
            self._entries.append(opened)

    def _take(self, took: Took) -> None:
        last = self._entries[-1] if self._entries else None
        if isinstance(last, Took) and (last.key, last.stream, last.end) == (took.key, took.stream, took.begin):
            self._entries[-1] = msgspec.structs.replace(
                last, end=took.end, samples=last.samples + took.samples, last=took.last
            )
        else:
            self._entries.append(took)

    def finished(self, run: Pass, number: int) -> None:
        if run.trained:
            self._entries.append(Finished(**_place(run), step=number, drops=run.loader.facts[2]))

    def flush(self) -> bool:
        """Hand all entries to the operating system; False, with the reason in `error`, if it did not take them."""
        self._flushed = now()
        try:
            while self._entries:
                self._log.append(self._encoder.encode(self._entries[0]))
                del self._entries[0]
        except OSError as error:
            self.error = error.strerror or str(error)
            return False
        self.error = None
        return True

    def sync(self) -> None:
        """Return when what was flushed is durable; the checkpoint's thread asks."""
        self._log.sync()

    def close(self) -> None:
        self.flush()
        self._log.close()


def _place(run: Pass) -> dict[str, int]:
    return {"loader": run.loader.facts[0], "epoch": run.turn.epoch, "number": run.turn.number}
