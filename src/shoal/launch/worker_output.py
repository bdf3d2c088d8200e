"""What workers write: three pipes each (output, errors, one report), read by the launcher as they fill."""

import os
import selectors
from collections.abc import Callable

from shoal.core.clock import Deadline
from shoal.launch.failures import WorkerProcess
from shoal.launch.worker import WorkerPipes

LARGEST_REPORT = 1 << 20
"""Bytes of a report that are kept; a longer one is cut, and then not believed."""
LONGEST_LINE = 1 << 20
STREAMS = ("out", "err", "report")

Ends = list[tuple[int, int]]
"""Read and write end of each pipe, in the order of STREAMS."""


class WorkerOutput:
    """Of all workers. `line` gets (rank, stream, text), `reported` the worker whose report has grown."""

    def __init__(self, line: Callable[[int, str, str], None], reported: Callable[[WorkerProcess], None]) -> None:
        self._line, self._reported = line, reported
        self._selector = selectors.DefaultSelector()

    @staticmethod
    def make() -> Ends:
        """Before the fork."""
        return [os.pipe() for _ in STREAMS]

    def keep(self, worker: WorkerProcess, ends: Ends) -> None:
        """In the launcher: read this worker's pipes from now on."""
        for (read, write), stream in zip(ends, STREAMS, strict=True):
            # or this pipe would not end with the worker
            os.close(write)
            # The launcher has one thread, which no worker may stop by leaving a line unfinished.
            os.set_blocking(read, False)
            self._selector.register(read, selectors.EVENT_READ, (worker, stream))

    def leave(self, ends: Ends) -> WorkerPipes:
        """In the worker: its own write ends, and nothing else of the launcher's."""
        self._close_all()
        for read, _ in ends:
            os.close(read)
        return WorkerPipes(*(write for _, write in ends))

    def forget(self) -> None:
        """In another process that is no worker."""
        self._close_all()

    def read(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            worker, stream = key.data
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fd)
                os.close(key.fd)
            if stream != "report":
                self._relay(worker, stream, data)
            elif data:
                worker.report += data[: LARGEST_REPORT - len(worker.report)]
                self._reported(worker)

    def _relay(self, worker: WorkerProcess, stream: str, data: bytes) -> None:
        *lines, rest = (worker.partial.get(stream, b"") + data).split(b"\n")
        # A worker that writes no end of line must not fill the launcher's memory.
        if rest and (not data or len(rest) > LONGEST_LINE):
            lines, rest = [*lines, rest], b""
        worker.partial[stream] = rest
        for line in lines:
            # A progress bar writes over its line: what a terminal would show in the end is the last of it.
            text = line.rstrip(b"\r").rpartition(b"\r")[2]
            self._line(worker.rank, stream, text.decode(errors="replace"))

    def drain(self, seconds: float, tick: float) -> None:
        """The last words that are still in the pipes, then no more."""
        deadline = Deadline.after(seconds)
        while self._selector.get_map() and not deadline.expired:
            self.read(tick)
        self._close_all()

    def _close_all(self) -> None:
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
