"""What a worker process of the server tells its supervisor: lines of JSON through a pipe, one way.

ready   the models are loaded; from now on it answers
load    what it does, several times a second; also the sign that it lives
say     a line for the person at the terminal
error   it cannot serve, and why; it ends
"""

import os

import msgspec

MOST_WAITING = 1 << 20
"""Bytes of one message at most; a longer line is a mistake."""


class WorkerReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message."""

    kind: str
    text: str = ""
    arrived: int = 0
    """Requests since it began."""
    waiting: int = 0
    """Requests that are being answered."""
    busy: float = 0.0
    """Seconds that models computed since it began."""


class ReportSender:
    """The worker's end. A supervisor that is gone is not waited for: the kernel ends the worker then."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        os.set_blocking(pipe, False)

    def send(self, report: WorkerReport) -> None:
        try:
            # Never waits: a supervisor that is slow to read must not hold up the event loop that answers requests.
            os.write(self._pipe, msgspec.json.encode(report) + b"\n")
        except (BlockingIOError, BrokenPipeError):
            return  # the next one says more


class ReportReader:
    """The supervisor's end; `ended` once the worker has closed its own."""

    def __init__(self, pipe: int) -> None:
        self.pipe, self.ended, self._rest = pipe, False, b""
        os.set_blocking(pipe, False)

    def read(self) -> list[WorkerReport]:
        """Everything that has come."""
        # Bounded, so that a worker that writes without end cannot keep its supervisor reading.
        while not self.ended and len(self._rest) < MOST_WAITING:
            try:
                data = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                break
            self.ended = not data
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [msgspec.json.decode(line, type=WorkerReport) for line in lines]

    def close(self) -> None:
        os.close(self.pipe)
