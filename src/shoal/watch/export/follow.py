"""Follows runs and hands their events to another tool: `shoal watch RUN --export mlflow`.

It is a process of its own, so that nothing of that tool is loaded into the training, and its trouble is not the run's.
"""

import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from shoal.core.errors import UsageError
from shoal.core.events import AnyEvent
from shoal.core.record import worker_file
from shoal.launch.live_runs import live
from shoal.watch.export.mlflow import MlflowExporter
from shoal.watch.export.opentelemetry import OpenTelemetryExporter
from shoal.watch.record import RunRecord, recorded_ranks
from shoal.watch.tail import JournalTail

POLL = 0.5
START = 10.0
"""Seconds in which a run that was just started must show that it lives."""


class RunExporter(Protocol):
    """Of one run. `add` gets the events of each worker in order; `close` is told how the run ended."""

    def add(self, rank: int, event: AnyEvent) -> None: ...
    def flush(self) -> None: ...
    def close(self, record: RunRecord) -> str:
        """Returns where the run is to be found, in words."""
        ...


Maker = Callable[[RunRecord, str], RunExporter]
MAKERS: dict[str, Maker] = {"mlflow": MlflowExporter, "otel": OpenTelemetryExporter}
PACKAGES = {"mlflow": "mlflow", "otel": "opentelemetry"}
"""What each needs; the extra of Shoal that brings it has the exporter's name."""


def export_runs(kind: str, folders: Sequence[Path], say: Callable[[str], None]) -> None:
    """Export runs to their end; those that are live are followed."""
    make, place = choose(kind)
    following = [RunFollower(folder, make, place) for folder in folders]
    while following:
        for each in list(following):
            if each.step():
                say(each.close())
                following.remove(each)
        if following:
            time.sleep(POLL)


def choose(text: str) -> tuple[Maker, str]:
    """What `KIND[=URI]` names; UsageError if there is no such kind, or it is not installed."""
    kind, _, place = text.partition("=")
    if kind not in MAKERS:
        raise UsageError(f"no exporter {kind!r}; there are {', '.join(MAKERS)}")
    # Looked for, not imported: the tool is loaded once there is a run to export.
    if importlib.util.find_spec(PACKAGES[kind]) is None:
        raise UsageError(f"{PACKAGES[kind]} is not installed; install it with: pip install 'shoal[{kind}]'")
    return MAKERS[kind], place


class RunFollower:
    """Reads one run's files until it has ended."""

    def __init__(self, folder: Path, make: Maker, place: str) -> None:
        self.folder = folder
        self._exporter = make(RunRecord.open(folder), place)
        self._tails: dict[int, JournalTail] = {}
        self._until = time.monotonic() + START
        self._lived = False

    def step(self) -> bool:
        """Export what is new; whether the run has ended, and all of it was read."""
        ended = self._has_ended()  # asked first: what was written before the end is then read below
        for rank in recorded_ranks(self.folder):
            tail = self._tails.setdefault(rank, JournalTail(worker_file(self.folder, rank)))
            for event in tail.read():
                self._exporter.add(rank, event)
        # Once for all that came, not for each event: a flush may be a request over the network.
        self._exporter.flush()
        return ended

    def _has_ended(self) -> bool:
        if RunRecord.open(self.folder).finished:
            return True
        here = any(Path(notice.dir).resolve() == self.folder.resolve() for notice in live())
        self._lived = self._lived or here
        # A launcher that was killed leaves no summary: a run that lived and is gone has ended too.
        return not here and (self._lived or time.monotonic() > self._until)

    def close(self) -> str:
        return self._exporter.close(RunRecord.open(self.folder))
