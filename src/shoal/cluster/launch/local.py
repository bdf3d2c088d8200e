"""`shoal run` on one host: forks the workers from this process, which has imported torch once, and watches them.

    launcher ── fork ──> worker 0 … worker p-1          (each its own process group)
        │  <── pipes: output, errors, one report ──┘
        │  ──> board: "worker r is lost, stop waiting"
        └── SIGTERM, then SIGKILL to whoever is left

The launcher starts no thread, so that it may fork at any time.
"""

import contextlib
import os
import selectors
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal.cluster.arena import Arena
from shoal.cluster.board import BYTES, Board
from shoal.cluster.launch.context import Context, inherit
from shoal.cluster.launch.worker import Pipes, Report, become_worker
from shoal.cluster.shared import SharedGroup
from shoal.core.clock import Deadline
from shoal.core.errors import ShoalError

TICK = 0.05
GRACE = 3.0
"""Seconds between the request to stop and the end of patience."""
LARGEST_REPORT = 1 << 20


@dataclass(frozen=True)
class Job:
    """What to run."""

    script: Path
    arguments: list[str]
    workers: int
    run: str
    dir: Path
    plan: str
    seed: int
    threads: int | None
    """Threads per worker; None leaves what the user's environment says."""


@dataclass(frozen=True)
class Failure:
    """What ended a run early: a worker's report, or the signal it died of."""

    rank: int
    report: Report | None
    signal: int | None
    also: tuple[int, ...] = ()
    """Other workers that failed by themselves."""


@dataclass
class Worker:
    """A worker as the launcher sees it."""

    rank: int
    pid: int
    report: bytearray = field(default_factory=bytearray)
    status: int | None = None
    """Exit code, or minus the signal; None while it lives."""
    partial: dict[str, bytes] = field(default_factory=dict)
    blamed: bool = False
    """Ended before anybody asked it to."""


class Watcher:
    """What the launcher tells its caller while workers run; the null member does nothing."""

    def line(self, rank: int, stream: str, text: str) -> None:
        """A worker wrote a line to `stream` (`out` or `err`)."""

    def tick(self, board: Board) -> None:
        """Time passes, about twenty times a second."""


class LocalLauncher:
    """Runs one job to its end. `run` returns None if every worker did well."""

    def __init__(self, job: Job, watcher: Watcher) -> None:
        self.job, self.watcher = job, watcher
        self.arena = Arena.create()
        self.board = Board(self.arena.map(0, BYTES))
        self.workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._stopping: Deadline | None = None

    def run(self) -> Failure | None:
        """Start the workers and watch them; KeyboardInterrupt passes through after everything is stopped."""
        with _signals_interrupt():
            try:
                for rank in range(self.job.workers):
                    self._start(rank)
                self._watch()
            except BaseException:
                self._end_all()
                raise
            finally:
                self._sweep()
        return self._failure()

    def _start(self, rank: int) -> None:
        ends = [os.pipe() for _ in range(3)]
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._selector.close()
            for read, _ in ends:
                os.close(read)
            pipes = Pipes(*(write for _, write in ends))
            job = self.job
            become_worker(pipes, parent, job.threads, lambda: self._enter(rank), job.script, job.arguments)
        with contextlib.suppress(OSError):  # both sides do it, so that neither can be too late
            os.setpgid(pid, pid)
        worker = Worker(rank, pid)
        self.workers.append(worker)
        for (read, write), stream in zip(ends, ("out", "err", "report"), strict=True):
            os.close(write)
            os.set_blocking(read, False)
            self._selector.register(read, selectors.EVENT_READ, (worker, stream))

    def _enter(self, rank: int) -> None:
        """In the worker: take the inherited arena and become a member of the group."""
        job = self.job
        group = SharedGroup(self.arena, rank, job.workers)
        inherit(Context(group, job.run, job.dir, job.plan, job.seed, begun=True))

    def _watch(self) -> None:
        while any(worker.status is None for worker in self.workers):
            self._read(TICK)
            self._reap()
            self.watcher.tick(self.board)
            if self._stopping is not None and self._stopping.expired:
                self._signal(signal.SIGKILL)

    def _read(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            worker, stream = key.data
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fd)
                os.close(key.fd)
            self._take(worker, stream, data)

    def _take(self, worker: Worker, stream: str, data: bytes) -> None:
        if stream == "report":
            worker.report += data[: LARGEST_REPORT - len(worker.report)]
            return
        *lines, rest = (worker.partial.get(stream, b"") + data).split(b"\n")
        if not data and rest:
            lines, rest = [*lines, rest], b""
        worker.partial[stream] = rest
        for line in lines:
            self.watcher.line(worker.rank, stream, line.decode(errors="replace"))

    def _reap(self) -> None:
        for worker in self.workers:
            if worker.status is not None:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                worker.status = os.waitstatus_to_exitcode(status)
                if worker.status != 0:
                    worker.blamed = self._stopping is None
                    self._stop(worker.rank)

    def _stop(self, lost: int) -> None:
        """A worker is lost: the others cannot go on without it."""
        if self._stopping is None:
            self.board.abort(lost)
            self._stopping = Deadline.after(GRACE)
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self.workers:
            if worker.status is None:
                _signal_group(worker.pid, number)

    def _end_all(self) -> None:
        """Whatever happens here, nothing stays behind; a second interrupt ends the courtesy."""
        with contextlib.suppress(KeyboardInterrupt):
            self._stopping = self._stopping or Deadline.after(GRACE)
            self._signal(signal.SIGTERM)
            while any(worker.status is None for worker in self.workers) and not self._stopping.expired:
                self._read(TICK)
                self._reap()
        self._signal(signal.SIGKILL)
        for worker in self.workers:
            if worker.status is None:
                worker.status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])

    def _sweep(self) -> None:
        """Children of workers too (loader processes), then the last words in the pipes, then the memory."""
        for worker in self.workers:
            _signal_group(worker.pid, signal.SIGKILL)
        deadline = Deadline.after(1.0)
        while self._selector.get_map() and not deadline.expired:
            self._read(TICK)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)  # type: ignore[arg-type]
        self._selector.close()
        self.arena.close()

    def _failure(self) -> Failure | None:
        failed = [worker for worker in self.workers if worker.status != 0]
        if not failed:
            return None
        reports = {worker.rank: _parse(worker.report) for worker in failed}
        own = [w.rank for w in failed if (r := reports[w.rank]) is not None and not r.peer]
        first = next((w for w in failed if w.blamed and not _secondary(reports[w.rank])), None)
        if first is None or (first.status is not None and first.status > 0 and first.rank not in own and own):
            first = self.workers[own[0]] if own else failed[0]
        code = first.status or 1
        also = tuple(rank for rank in own if rank != first.rank)
        return Failure(first.rank, reports[first.rank], -code if code < 0 else None, also)


def _secondary(report: Report | None) -> bool:
    return report is not None and report.peer


def _parse(data: bytes | bytearray) -> Report | None:
    if not data:
        return None
    try:
        return msgspec.json.decode(bytes(data), type=Report)
    except msgspec.DecodeError as error:
        raise ShoalError(f"a worker's last report is unreadable: {error}") from None


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP stop a run as tidily as Ctrl-C does."""
    handler: Callable[..., None] = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
