"""Which runs the page shows, and how each stands: read from their folders, cheaply enough to ask every second."""

import time
from pathlib import Path

import msgspec

from shoal.core.errors import ShoalError
from shoal.core.events import StepFinished
from shoal.core.record import RunInfo, RunSummary, read_info, worker_file
from shoal.launch.live_runs import RunNotice, live
from shoal.watch.page.run_state import RunState
from shoal.watch.record import INFO, SUMMARY
from shoal.watch.summary import read_summary
from shoal.watch.tail import decode

MOST_STATES = 8
"""Runs that are held in memory; whichever was not asked for the longest is read anew when it is."""
MOST_RUNS = 2000
LIVE_SECONDS = 0.2
END = 8192


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list of runs."""

    id: str
    run: str
    dir: str
    plan: str
    workers: int
    script: str
    started: float
    state: str
    """running, stopping, stopped (frozen), done, failed, interrupted, or killed (no end was recorded)."""
    steps: int
    seconds: float | None
    samples_per_second: float | None
    bytes_sent: int | None
    metrics: dict[str, float]


class RunCatalog:
    """The runs of a folder, or only those that were named."""

    def __init__(self, root: Path, only: list[Path] | None = None) -> None:
        self.root, self._only = root, only
        self._infos: dict[Path, tuple[int, RunInfo]] = {}
        self._summaries: dict[Path, tuple[int, RunSummary | None]] = {}
        self._states: dict[Path, RunState] = {}
        self._live: tuple[float, dict[str, RunNotice]] = (0.0, {})

    def folders(self) -> dict[str, Path]:
        """Id -> folder, newest first; a second run of one name gets a number behind it."""
        paths = self._only if self._only is not None else [path.parent for path in self.root.glob(f"*/{INFO}")]
        known = [(info.started, path) for path in paths[:MOST_RUNS] if (info := self._info(path)) is not None]
        found: dict[str, Path] = {}
        for _, path in sorted(known, reverse=True):
            number, name = 1, path.name
            while name in found:
                number, name = number + 1, f"{path.name}~{number + 1}"
            found[name] = path
        return found

    def folder(self, name: str) -> Path | None:
        return self.folders().get(name)

    def state(self, directory: Path) -> RunState:
        """What the page knows of a run; opened when it is first asked for."""
        state = self._states.pop(directory, None) or RunState(directory)
        self._states[directory] = state  # the newest is the last
        while len(self._states) > MOST_STATES:
            self._states.pop(next(iter(self._states)))
        return state

    def notice(self, directory: Path) -> RunNotice | None:
        """The live run of a folder; None if it is not live."""
        return self._notices().get(str(directory.resolve()))

    def _notices(self) -> dict[str, RunNotice]:
        at, found = self._live
        # One look at the live runs serves all rows of an answer.
        if time.monotonic() - at > LIVE_SECONDS:
            found = {str(Path(notice.dir).resolve()): notice for notice in live()}
            self._live = (time.monotonic(), found)
        return found

    def rows(self) -> list[RunRow]:
        return [self._row(name, path) for name, path in self.folders().items()]

    def _row(self, name: str, path: Path) -> RunRow:
        info, summary, notice = self._info(path), self._summary(path), self.notice(path)
        assert info is not None
        return RunRow(
            id=name,
            run=info.run,
            dir=str(path),
            plan=info.plan,
            workers=info.workers,
            script=info.script,
            started=info.started,
            state=state_of(notice, summary),
            steps=summary.steps if summary is not None else last_step(path),
            seconds=summary.seconds if summary is not None else None,
            samples_per_second=summary.samples_per_second if summary is not None else None,
            bytes_sent=summary.bytes_sent if summary is not None else None,
            metrics=summary.metrics if summary is not None else {},
        )

    def _info(self, path: Path) -> RunInfo | None:
        try:
            # Decoded again only when it has changed: the list is asked for every second.
            changed = (path / INFO).stat().st_mtime_ns
            known = self._infos.get(path)
            if known is None or known[0] != changed:
                self._infos[path] = known = (changed, read_info(path))
            return known[1]
        except (OSError, ShoalError):
            return None

    def _summary(self, path: Path) -> RunSummary | None:
        try:
            changed = (path / SUMMARY).stat().st_mtime_ns
        except OSError:
            return None
        known = self._summaries.get(path)
        if known is None or known[0] != changed:
            self._summaries[path] = known = (changed, read_summary(path))
        return known[1]


def state_of(notice: RunNotice | None, summary: RunSummary | None) -> str:
    if notice is not None:
        state = notice.launcher.state
        return "stopping" if notice.stopping and state == "running" else state
    if summary is None:
        return "killed"
    # 130 is the exit code after Ctrl-C.
    return {0: "done", 130: "interrupted"}.get(summary.exit, "failed")


def last_step(path: Path) -> int:
    """Steps of a run without a summary, from the end of worker 0's file."""
    try:
        with worker_file(path, 0).open("rb") as file:
            file.seek(0, 2)
            # Only the end: the list asks every second, and a file may have gigabytes.
            file.seek(max(0, file.tell() - END))
            lines = file.read().splitlines()
    except OSError:
        return 0
    events = (decode(line) for line in reversed(lines))
    return next((event.step + event.steps for event in events if isinstance(event, StepFinished)), 0)
