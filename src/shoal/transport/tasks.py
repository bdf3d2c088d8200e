"""Collective tasks, which the members of a view do together by exchanging chunks, and the table of those under way.

The table also keeps early chunks: those of tasks that peers have begun and this worker has not.
"""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Sequence

from shoal.core.clock import now
from shoal.core.errors import LayoutError, ShoalError
from shoal.transport.messages import ChunkHeader, FramePayload, FrameRefused

Send = Callable[[int, int, int, FramePayload], None]
"""(peer, phase, index, payload): queue a chunk of this task."""


class MeshView:
    """The ranks that take part, and this worker's place among them."""

    def __init__(self, ranks: Sequence[int], rank: int) -> None:
        self.ranks, self.rank = list(ranks), rank
        self.size, self.place = len(self.ranks), self.ranks.index(rank)
        self.others = [peer for peer in self.ranks if peer != rank]
        # Neighbours on the ring of this view's members, not of all slots.
        self.after = self.ranks[(self.place + 1) % self.size]
        self.before = self.ranks[(self.place - 1) % self.size]


class CollectiveTask(ABC):
    """One collective operation. Its input must not change until it is done; an aborted task has not changed it
    either."""

    kind: str
    channel: int = 0
    """0 is the group's own, and every engine has another. Channels are independent; each keeps its own order."""
    urgency: int = 0
    """Its chunks leave before those of a higher urgency, and after earlier ones of the same."""
    alike: bool = True
    """Whether all members' totals must be equal."""

    def __init__(self, total: int) -> None:
        self.total = total
        """Bytes that this worker sends in pieces; every chunk's header repeats it."""
        self.number = -1
        self.among: Sequence[int] | None = None
        """The participants, if not the whole view; only they submit it."""
        self.done = threading.Event()
        self.error: ShoalError | None = None
        self.culprit: int | None = None
        """The peer whose chunk made it fail, if one did."""
        self.senders: Container[int] = ()
        """The participants, which may send chunks of it."""
        self.ended = 0.0
        """When the last chunk came; 0 before."""

    @property
    def key(self) -> tuple[int, int]:
        return self.channel, self.number

    @abstractmethod
    def begin(self, view: MeshView, send: Send) -> None:
        """Send what can be sent at once; set `done` if there is nothing to wait for."""

    @abstractmethod
    def arrived(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        """Take in a checked chunk, each once; set `done` with the last."""

    @abstractmethod
    def missing(self) -> list[int]:
        """Return the peers that the task waits for."""

    def fail(self, error: ShoalError, culprit: int | None = None) -> None:
        """End the task with an error, unless it is done."""
        if not self.done.is_set():
            self.error, self.culprit = error, culprit
            self.done.set()


LARGEST_EARLY = 256 << 20
"""Bytes of early chunks, of all peers together: peers may be ahead, but must not fill this worker's memory."""
EARLY_HEAD = 1024
"""Bytes counted for an early chunk beside its payload, so that empty ones are limited too."""


class TaskTable:
    """The tasks of worker `rank`, by channel and number."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._tasks: dict[tuple[int, int], CollectiveTask] = {}
        self._next: Counter[int] = Counter()
        self._early: dict[tuple[int, int], list[tuple[int, ChunkHeader, FramePayload]]] = {}
        self._early_bytes: Counter[int] = Counter()
        """By peer, so that one peer's early chunks take no room from the others."""

    def add(self, task: CollectiveTask, begin: Callable[[], None]) -> None:
        """Begin a task, and hand it the chunks that came early."""
        self._tasks[task.key] = task
        self._next[task.channel] = task.number + 1
        self._do(task, begin)
        # In the order they came, which is each sender's order.
        for sender, chunk, payload in self._early.pop(task.key, ()):
            self._early_bytes[sender] -= payload.size + EARLY_HEAD
            self._hand(task, sender, chunk, payload)

    def room(self, sender: int, chunk: ChunkHeader, payload: FramePayload, peers: int) -> bool:
        """Return whether there is room for a chunk; if not, it is not acknowledged, and so sent again later."""
        most = LARGEST_EARLY // max(1, peers)
        return not self._is_early(chunk) or self._early_bytes[sender] + payload.size + EARLY_HEAD <= most

    def give(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        """Hand a chunk to its task, now or when the task is submitted; drop it if the task is over."""
        key = (chunk.channel, chunk.task)
        if self._is_early(chunk):
            self._early.setdefault(key, []).append((sender, chunk, payload))
            self._early_bytes[sender] += payload.size + EARLY_HEAD
        elif (task := self._tasks.get(key)) is not None:
            self._hand(task, sender, chunk, payload)

    def _is_early(self, chunk: ChunkHeader) -> bool:
        return chunk.task >= self._next[chunk.channel] and (chunk.channel, chunk.task) not in self._tasks

    def abort(self, error: ShoalError) -> None:
        """Fail all tasks; chunks of this generation that still come change nothing."""
        for task in self._tasks.values():
            task.fail(error)
        self._tasks.clear()
        self._early.clear()
        self._early_bytes.clear()

    def begin_anew(self) -> None:
        """Restart the numbers of tasks, in a new view."""
        self._next.clear()

    def _hand(self, task: CollectiveTask, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        # A task that failed may still get chunks from peers that have not noticed.
        if task.done.is_set() or sender not in task.senders:
            return  # a peer that is no participant, such as a newcomer, cannot make it fail
        if chunk.kind != task.kind or (task.alike and chunk.total != task.total):
            error = LayoutError(
                f"worker {sender} is in a {chunk.kind} of {chunk.total} bytes where worker {self.rank} is in a "
                f"{task.kind} of {task.total}; all workers must make the same calls"
            )
            task.fail(error, sender)
        else:
            self._do(task, lambda: task.arrived(sender, chunk, payload), sender)
        self._settle(task)

    def _do(self, task: CollectiveTask, work: Callable[[], None], sender: int | None = None) -> None:
        try:
            work()
        except ShoalError as error:
            task.fail(error, sender)
        except Exception as error:
            # Not a peer's fault but a bug of this worker: let it end the communication thread.
            if sender is None:
                raise
            task.fail(FrameRefused(f"a chunk of worker {sender} cannot be handled: {error!r}"), sender)
        self._settle(task)

    def _settle(self, task: CollectiveTask) -> None:
        if task.done.is_set() and self._tasks.pop(task.key, None) is not None:
            task.ended = now()
