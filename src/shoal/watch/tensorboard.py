"""TensorBoard event files beside the record, written from it while the run goes on.

<run>/tensorboard/worker-<r>/   log/<name>, report/<name>, time/<phase>, time/step, samples_per_second

No thread is started (the launcher forks workers, and a forked copy of a thread's locks can hang a child), and
nothing stays buffered between two updates (a child would write it a second time). The checksums are computed
in Python at about a tenth of a millisecond a line: give `update` a time to keep within when steps are short.
"""

import importlib.util
from math import inf
from pathlib import Path
from typing import Any

from shoal.core import clock
from shoal.core.errors import UsageError
from shoal.core.events import ResultsReported, StepFinished, ValuesLogged
from shoal.core.record import read_info, worker_file
from shoal.watch.record import recorded_ranks
from shoal.watch.tail import JournalTail
from shoal.watch.worker import PHASES

FOLDER = "tensorboard"


def available() -> bool:
    """Whether the extra `shoal[tensorboard]` is installed."""
    return importlib.util.find_spec("tensorboard") is not None


class TensorBoardMirror:
    """Follows the record in `directory`; a second mirror of the same run replaces the first one's files."""

    def __init__(self, directory: Path) -> None:
        if not available():
            raise UsageError("TensorBoard is not installed; install it with: pip install 'shoal[tensorboard]'")
        self.directory = directory
        self._began = read_info(directory).started
        self._open: dict[int, tuple[JournalTail, _EventFile]] = {}

    def update(self, seconds: float = inf) -> None:
        """Write what is new; what does not fit into `seconds` follows next time."""
        deadline = clock.now() + seconds
        for rank in recorded_ranks(self.directory):
            tail, file = self._worker(rank)
            for event in tail.read():
                if isinstance(event, StepFinished | ValuesLogged | ResultsReported):
                    file.add(event.at, event.step, scalars(event))
                # The tail keeps its place, and the rest follows next time.
                if clock.now() >= deadline:
                    break
            file.flush()

    def close(self) -> None:
        for _, file in self._open.values():
            file.close()
        self._open.clear()

    def _worker(self, rank: int) -> "tuple[JournalTail, _EventFile]":
        if rank not in self._open:
            folder = self.directory / FOLDER / f"worker-{rank}"
            folder.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads only files with `tfevents` in their names.
            file = _EventFile(folder / f"events.out.tfevents.{self._began:.0f}.shoal", self._began)
            self._open[rank] = (JournalTail(worker_file(self.directory, rank)), file)
        return self._open[rank]


def scalars(event: StepFinished | ValuesLogged | ResultsReported) -> dict[str, float]:
    """What TensorBoard draws of one event, by tag."""
    if isinstance(event, ValuesLogged):
        return {f"log/{name}": number for name, number in event.values.items()}
    if isinstance(event, ResultsReported):
        return {f"report/{name}": number for name, number in event.metrics.items()}
    speed = {"samples_per_second": event.samples / event.seconds} if event.seconds else {}
    return {
        "time/step": event.seconds / event.steps,
        **{f"time/{phase}": getattr(event, phase) / event.steps for phase in PHASES},
        **speed,
    }


class _EventFile:
    """One file of TensorBoard's own records; opens with the version every reader looks for."""

    def __init__(self, path: Path, began: float) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer = RecordWriter(path.open("wb"))
        self._write(self._event(wall_time=began, file_version="brain.Event:2"))

    def add(self, at: float, step: int, values: dict[str, float]) -> None:
        found = [self._summary.Value(tag=tag, simple_value=number) for tag, number in values.items()]
        self._write(self._event(wall_time=at, step=step, summary=self._summary(value=found)))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
