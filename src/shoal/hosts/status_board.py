"""The status board: one row per worker in shared memory with its state and progress.

It also holds the gate that stops workers before a step for which a lab has planned an event.
"""

import enum
import math
import mmap
import os
import time

from shoal.core.clock import Deadline, now
from shoal.core.errors import DeadlineError, PeerLost

BYTES = 1 << 16
_HEAD = 512  # words of the header, one page
_ROW = 16  # words of a worker's row: 128 bytes, so that rows never share a cache line
MOST_WORKERS = (BYTES // 8 - _HEAD) // _ROW

# Words of the header.
_ABORT, _GATE, _STOP = 0, 1, 2
_TERMS = 64  # first of the words of servers, one each
_PID, _STATE, _EPOCH, _STEP, _SAMPLES, _SENT, _LOSS, _SEEN, _SYNCS, _LEAVE = range(10)


class WorkerState(enum.IntEnum):
    """The state in which a worker was last seen."""

    absent = 0
    starting = 1
    loading = 2
    computing = 3
    exchanging = 4
    updating = 5
    ended = 6
    synchronizing = 7
    standing_back = 8
    """Of heartbeats alone: another run goes first on the link."""


class StatusBoard:
    """Rows of 64-bit words in `memory`; words are written atomically, so readers never see half a number."""

    def __init__(self, memory: mmap.mmap) -> None:
        view = memoryview(memory)[:BYTES]
        self._words = view.cast("q")
        self._numbers = view.cast("d")

    @classmethod
    def private(cls) -> "StatusBoard":
        """Return a board in private memory, for a world of one."""
        return cls(mmap.mmap(-1, BYTES))

    def enter(self, rank: int) -> None:
        """Register this process as worker `rank`."""
        row = _row(rank)
        self._words[row + _PID] = os.getpid()
        self._numbers[row + _LOSS] = math.nan
        self.note(rank, WorkerState.starting)

    def note(self, rank: int, state: WorkerState) -> None:
        row = _row(rank)
        self._words[row + _STATE] = state
        self._numbers[row + _SEEN] = now()

    def enter_sync(self, rank: int) -> None:
        """Note that worker `rank` enters its next synchronization of all workers."""
        # Not atomic, and need not be: each worker alone writes its row.
        self._words[_row(rank) + _SYNCS] += 1
        self.note(rank, WorkerState.synchronizing)

    def count_syncs(self, rank: int) -> int:
        """Return how many synchronizations worker `rank` has entered."""
        return self._words[_row(rank) + _SYNCS]

    def set_syncs(self, rank: int, syncs: int) -> None:
        """Set a newcomer's number of synchronizations to that of the others."""
        self._words[_row(rank) + _SYNCS] = syncs

    def ahead(self, rank: int, other: int) -> bool:
        """Return whether `other` waits in a synchronization that `rank` has not entered."""
        words, mine, theirs = self._words, _row(rank), _row(other)
        return words[theirs + _STATE] == WorkerState.synchronizing and words[theirs + _SYNCS] > words[mine + _SYNCS]

    def progress(self, rank: int, epoch: int, step: int, samples: int, sent: int) -> None:
        row = _row(rank)
        words = self._words
        words[row + _EPOCH] = epoch
        words[row + _STEP] = step
        words[row + _SAMPLES] = samples
        words[row + _SENT] = sent

    def loss(self, rank: int, value: float) -> None:
        self._numbers[_row(rank) + _LOSS] = value

    def step(self, rank: int) -> int:
        return self._words[_row(rank) + _STEP]

    def state(self, rank: int) -> int:
        return self._words[_row(rank) + _STATE]

    def read(self, rank: int) -> dict[str, float]:
        """Return the content of a worker's row."""
        row = _row(rank)
        words = self._words
        return {
            "pid": words[row + _PID],
            "state": words[row + _STATE],
            "epoch": words[row + _EPOCH],
            "step": words[row + _STEP],
            "samples": words[row + _SAMPLES],
            "sent": words[row + _SENT],
            "loss": self._numbers[row + _LOSS],
            "seen": self._numbers[row + _SEEN],
        }

    def describe(self, rank: int) -> str:
        """Describe a worker: `worker 2 (pid 4711), last seen computing in step 418, 3.2 s ago`."""
        row = self.read(rank)
        if row["state"] == WorkerState.absent:
            return f"worker {rank}, which never started"
        state = WorkerState(int(row["state"])).name
        ago = now() - row["seen"]
        return f"worker {rank} (pid {int(row['pid'])}), last seen {state} in step {int(row['step'])}, {ago:.1f} s ago"

    def abort(self, rank: int) -> None:
        """Tell every worker that `rank` is lost, so that waits end at once."""
        self._words[_ABORT] = rank + 1  # fresh memory is zero, which must mean no worker

    def stop(self) -> None:
        """Ask the workers to take a checkpoint and end."""
        self._words[_STOP] = 1

    @property
    def stopping(self) -> bool:
        return bool(self._words[_STOP])

    def ask_to_leave(self, rank: int) -> None:
        """Ask one worker to leave the run after its step; the others go on."""
        self._words[_row(rank) + _LEAVE] = 1

    def let_stay(self, rank: int) -> None:
        """Clear the request to leave that an earlier worker of this slot was given."""
        self._words[_row(rank) + _LEAVE] = 0

    def is_leaving(self, rank: int) -> bool:
        """Return whether worker `rank` was asked to leave."""
        return bool(self._words[_row(rank) + _LEAVE])

    def set_server_term(self, server: int, term: int) -> None:
        """Note how often another process has taken over from a server: workers reconnect."""
        self._words[_TERMS + server] = term

    def server_term(self, server: int) -> int:
        return self._words[_TERMS + server]

    def gate(self, step: int | None) -> None:
        """Close the gate: no worker may begin `step` or a later one; None opens it."""
        self._words[_GATE] = 0 if step is None else step + 1

    def closed(self, step: int) -> bool:
        """Return whether `step` must not begin yet."""
        gate = self._words[_GATE]
        return bool(gate) and step >= gate - 1

    def front(self, workers: int) -> int | None:
        """Return the highest step among the first `workers` workers; None before any has begun to train."""
        rows = [self.read(rank) for rank in range(workers)]
        return max((int(row["step"]) for row in rows if row["state"] >= WorkerState.loading), default=None)

    @property
    def aborted(self) -> int | None:
        """Return the rank of the lost worker, or None."""
        word = self._words[_ABORT]
        return word - 1 if word else None


def _row(rank: int) -> int:
    return _HEAD + rank * _ROW


# Seconds; only a lab closes the gate, and its events need no finer time.
PAUSE = 1e-3


def pass_gate(board: StatusBoard, rank: int, step: int, seconds: float) -> None:
    """Return when `step` may begin; at once without a lab."""
    if not board.closed(step):
        return
    deadline = Deadline.after(seconds)
    while board.closed(step):
        if board.aborted is not None:
            raise PeerLost(f"worker {rank} stops: worker {board.aborted} is lost")
        if deadline.expired:
            raise DeadlineError(
                f"worker {rank} waited {seconds:.0f} s for the launcher to play the events of step {step}"
            )
        time.sleep(PAUSE)
