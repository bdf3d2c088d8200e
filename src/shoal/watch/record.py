"""A run's record on disk, opened for reading: also while the run goes on, also after it was killed."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.events import (
    AnyEvent,
    LabEventApplied,
    RemoteWorkerEnded,
    StepFinished,
    ValuesLogged,
    WorkerLost,
    WorkerStarted,
)
from shoal.core.merging import split_step
from shoal.core.record import RunInfo, launcher_file, read_attempts, read_info, run_dir, worker_file
from shoal.watch.tail import JournalTail

SUMMARY = "summary.json"
INFO = "run.json"

_worker_name = re.compile(r"worker-(\d+)\.jsonl")


@dataclass(frozen=True)
class RunRecord:
    """One run's folder; nothing of the workers' files is held in memory."""

    dir: Path
    info: RunInfo

    @classmethod
    def open(cls, directory: Path) -> "RunRecord":
        return cls(directory, read_info(directory))

    @property
    def attempts(self) -> list[RunInfo]:
        """How the run was started, and each time it was continued."""
        return read_attempts(self.dir)

    @property
    def ranks(self) -> list[int]:
        """The workers that were planned and those that left a file, in order."""
        return sorted({*(self.info.slots or range(self.info.workers)), *recorded_ranks(self.dir)})

    @property
    def finished(self) -> bool:
        """Whether the launcher saw the end: the summary is the last thing it writes."""
        return (self.dir / SUMMARY).exists()

    def happenings(self) -> list[LabEventApplied]:
        """What the launcher did to the run."""
        return [event for event in JournalTail(launcher_file(self.dir)).read() if isinstance(event, LabEventApplied)]

    def losses(self) -> list[WorkerLost]:
        """Workers that were lost on the way, in order."""
        return [event for event in JournalTail(launcher_file(self.dir)).read() if isinstance(event, WorkerLost)]

    def remote_ends(self) -> dict[int, tuple[int, str]]:
        """By worker of another machine: the step after which it ended, and the fingerprint of what it held then."""
        events = [
            event for event in JournalTail(launcher_file(self.dir)).read() if isinstance(event, RemoteWorkerEnded)
        ]
        return {event.worker: (event.step, event.fingerprint) for event in events}

    def events(self, rank: int) -> Iterator[AnyEvent]:
        """What worker `rank` recorded, in order; nothing if it left no file.

        Steps that a later attempt took back, because it went on from a checkpoint before them, are left out; of
        merged steps, the share of those that were.
        """
        limits = [attempt.step for attempt in self.attempts]
        # Records begin with the first attempt; a worker that starts again says which one it belongs to.
        attempt = 1
        for event in JournalTail(worker_file(self.dir, rank)).read():
            if isinstance(event, WorkerStarted):
                attempt = event.attempt
            taken_back: float = min(limits[attempt:], default=inf)
            if not isinstance(event, StepFinished | ValuesLogged):
                yield event
            elif event.step < taken_back:
                whole = event.step + event.steps <= taken_back
                yield (
                    event
                    if whole or isinstance(event, ValuesLogged)
                    else split_step(event, int(taken_back) - event.step)
                )


def recorded_ranks(directory: Path) -> list[int]:
    """The workers that have a file in `directory`, in order."""
    found = (_worker_name.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match.group(1)) for match in found if match)


def list_runs(root: Path) -> list[Path]:
    """The folders of all runs under `root`, newest first; folders that hold no run are passed over."""
    started = {path.parent: _started(path.parent) for path in root.glob(f"*/{INFO}")}
    known = [(when, path) for path, when in started.items() if when is not None]
    return [path for _, path in sorted(known, reverse=True)]


def resolve(root: Path, name: str | None = None) -> Path:
    """The folder of a run: of the one called `name` in `root`, of the one at the path `name`, or of the newest."""
    if name is not None and is_path(name):
        return at_path(name)
    if name is not None and (run_dir(root, name) / INFO).exists():
        return run_dir(root, name)
    runs = list_runs(root)
    if not runs:
        raise UsageError(f"no runs in {str(root)!r}; start one with 'shoal run', or name their folder with --runs")
    if name is None:
        return runs[0]
    # Cutoff 0: the nearest name is told however far it is.
    nearest = difflib.get_close_matches(name, [path.name for path in runs], n=1, cutoff=0.0)[0]
    raise UsageError(f"no run {name!r} in {str(root)!r}; the nearest is {nearest!r}")


def is_path(name: str) -> bool:
    """Whether the user means a folder: an id never contains a slash and never begins with a dot."""
    return "/" in name or name in (".", "..")


def at_path(name: str) -> Path:
    """The folder at a path, if it holds a run's files."""
    directory = Path(name).expanduser().absolute()
    directory = directory.resolve() if ".." in directory.parts else directory
    if not (directory / INFO).is_file():
        what = "no run's folder: it holds no run.json" if directory.is_dir() else "no folder"
        raise UsageError(f"{name!r} is {what}; give the folder that shoal run made, such as runs/ID, or the run's id")
    return directory


def _started(directory: Path) -> float | None:
    try:
        return read_info(directory).started
    except (UsageError, OSError, ValueError):
        return None
