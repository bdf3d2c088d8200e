"""Relays a running job's events: passes output on, and feeds the display and TensorBoard."""

import os
import sys

import typer

from shoal.core.clock import now
from shoal.hosts.status_board import StatusBoard, WorkerState
from shoal.launch.job import JobWatcher, LaunchJob
from shoal.watch.live import ProgressDisplay, WorkerRow
from shoal.watch.tensorboard import TensorBoardMirror, available
from shoal.watch.waits import WaitTotals
from shoal.watch.worker_logs import LogWriter

DISPLAY_SECONDS = 0.2
MIRROR_SECONDS, MIRROR_SHARE, MIRROR_REST = 1.0, 0.05, 5.0
"""TensorBoard: seconds between updates, what one may take, and what the last one may take."""


class JobRelay(JobWatcher):
    """The launcher's watcher; everything runs in the launcher's one thread."""

    def __init__(self, job: LaunchJob, display: ProgressDisplay, quiet: bool) -> None:
        self.job, self.display, self.quiet = job, display, quiet
        self.mirror = TensorBoardMirror(job.dir) if available() else None
        self.logs = LogWriter(job.dir)
        self.one_terminal, self.waits = _one_terminal(), WaitTotals()
        self.began = self.drawn = self.mirrored = now()

    def line(self, rank: int, stream: str, text: str) -> None:
        self.logs.add(rank, text)
        if stream == "err" or (self.one_terminal and not self.quiet):
            self.display.print(f"[{rank}] {text}")
        elif not self.quiet:
            sys.stdout.write(f"[{rank}] {text}\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        self.display.print(f"shoal: {text}")

    def tick(self, board: StatusBoard) -> None:
        if not self.quiet and now() - self.drawn >= DISPLAY_SECONDS:
            self.drawn = now()
            # Slots kept free show only once a worker was in them.
            added = (slot for slot in range(self.job.workers, self.job.capacity) if board.state(slot))
            rows = [_row(board, rank) for rank in (*self.job.slots, *added)]
            self.display.update(rows, now() - self.began)
            if (said := self.waits.look(rows)) is not None:
                self.note(said)
        if now() - self.mirrored >= MIRROR_SECONDS:
            self._update(MIRROR_SHARE)
            self.mirrored = now()

    def close(self) -> None:
        """Send the rest to TensorBoard, after the last frame has been drawn."""
        self.display.stop()
        self.logs.close()
        self._update(MIRROR_REST)
        if self.mirror is not None:
            self.mirror.close()

    def _update(self, seconds: float) -> None:
        # TensorBoard is not installed, or was given up.
        if self.mirror is None:
            return
        try:
            self.mirror.update(seconds)
        except Exception as error:  # noqa: BLE001  (a viewer's trouble must not end the training)
            # Given up for good, because what failed once would fail, and be told, at every update.
            self.mirror = None
            typer.echo(f"shoal: no more TensorBoard files for this run: {error}; training goes on", err=True)


def _row(board: StatusBoard, rank: int) -> WorkerRow:
    word = board.read(rank)
    return WorkerRow(
        rank=rank,
        step=int(word["step"]),
        epoch=int(word["epoch"]),
        loss=word["loss"],
        samples=int(word["samples"]),
        bytes_sent=int(word["sent"]),
        state=WorkerState(int(word["state"])).name,
        pid=int(word["pid"]),
        since=now() - word["seen"],
    )


def _one_terminal() -> bool:
    """Return whether output and display share a terminal, where a line written past the display would tear its
    table."""
    try:
        out, err = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # one of them is closed or no file at all
        return False
    return sys.stdout.isatty() and sys.stderr.isatty() and out.st_rdev == err.st_rdev
