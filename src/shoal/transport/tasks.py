"""A collective task: what all members of a view do together by exchanging chunks; and the table of tasks under way,
with the early chunks of tasks that this worker has not started yet.
"""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Sequence

from shoal.core.clock import now
from shoal.core.errors import LayoutError, ShoalError
from shoal.transport.messages import ChunkHeader, FramePayload, FrameRefused

Send = Callable[[int, int, int, FramePayload], None]
"""(peer, phase, index, payload): a chunk of this task leaves as soon as its link lets it."""


class MeshView:
    """The members in order of rank, and this worker's place among them; tasks know peers by that number."""

    def __init__(self, ranks: Sequence[int], rank: int) -> None:
        self.ranks, self.rank = list(ranks), rank
        self.size, self.place = len(self.ranks), self.ranks.index(rank)
        self.others = [peer for peer in self.ranks if peer != rank]
        self.after = self.ranks[(self.place + 1) % self.size]
        self.before = self.ranks[(self.place - 1) % self.size]


class CollectiveTask(ABC):
    """What is handed in must stay as it is until the task is done; a task that was aborted has not changed it."""

    kind: str
    channel: int = 0
    """0: the group's own; every engine has another. They do not wait for each other; each keeps its own order."""
    urgency: int = 0
    """Its chunks leave before those of tasks with a higher number, and after those handed in earlier with the same."""
    alike: bool = True
    """Whether everybody's whole must be of the same length."""

    def __init__(self, total: int) -> None:
        self.total = total
        """Bytes of what this worker sends pieces of; stands in every chunk's message."""
        self.number = -1
        self.among: Sequence[int] | None = None
        """Its participants, if not the whole view; only they hand it in."""
        self.done = threading.Event()
        self.error: ShoalError | None = None
        self.culprit: int | None = None
        """The peer whose chunk made it fail, if one did."""
        self.senders: Container[int] = ()
        """Its participants, which may send chunks of it."""
        self.ended = 0.0
        """When the last chunk had come; 0 as long as it has not."""

    @property
    def key(self) -> tuple[int, int]:
        return self.channel, self.number

    @abstractmethod
    def begin(self, view: MeshView, send: Send) -> None:
        """Send what can be sent at once; sets `done` if there is nothing to wait for."""

    @abstractmethod
    def arrived(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        """A chunk of this task came, checked and for the first time; sets `done` with the last."""

    @abstractmethod
    def missing(self) -> list[int]:
        """The peers it waits for."""

    def fail(self, error: ShoalError, culprit: int | None = None) -> None:
        """Nothing will come of it."""
        if not self.done.is_set():
            self.error, self.culprit = error, culprit
            self.done.set()


LARGEST_EARLY = 256 << 20
"""Bytes of tasks that were not handed in yet, of all peers: they may be ahead, but not without end."""
EARLY_HEAD = 1024
"""Bytes that a chunk takes beside its payload while it waits, whether its payload is empty or not."""


class TaskTable:
    """Of worker `rank`; each is known by its channel and its number there."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._tasks: dict[tuple[int, int], CollectiveTask] = {}
        self._next: Counter[int] = Counter()
        self._early: dict[tuple[int, int], list[tuple[int, ChunkHeader, FramePayload]]] = {}
        self._early_bytes: Counter[int] = Counter()
        """By peer: what one sends takes no room from the others."""

    def add(self, task: CollectiveTask, begin: Callable[[], None]) -> None:
        """Begin a task; what peers have sent of it already is waiting."""
        self._tasks[task.key] = task
        self._next[task.channel] = task.number + 1
        self._do(task, begin)
        for sender, chunk, payload in self._early.pop(task.key, ()):
            self._early_bytes[sender] -= payload.size + EARLY_HEAD
            self._hand(task, sender, chunk, payload)

    def room(self, sender: int, chunk: ChunkHeader, payload: FramePayload, peers: int) -> bool:
        """Whether it may be given; else it must come again. `peers` share the room."""
        most = LARGEST_EARLY // max(1, peers)
        return not self._is_early(chunk) or self._early_bytes[sender] + payload.size + EARLY_HEAD <= most

    def give(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        """To its task, now or when that is handed in; of one that is over it changes nothing."""
        key = (chunk.channel, chunk.task)
        if self._is_early(chunk):
            self._early.setdefault(key, []).append((sender, chunk, payload))
            self._early_bytes[sender] += payload.size + EARLY_HEAD
        elif (task := self._tasks.get(key)) is not None:
            self._hand(task, sender, chunk, payload)

    def _is_early(self, chunk: ChunkHeader) -> bool:
        return chunk.task >= self._next[chunk.channel] and (chunk.channel, chunk.task) not in self._tasks

    def abort(self, error: ShoalError) -> None:
        """End all; chunks of this generation that still come change nothing."""
        for task in self._tasks.values():
            task.fail(error)
        self._tasks.clear()
        self._early.clear()
        self._early_bytes.clear()

    def begin_anew(self) -> None:
        """Numbers do, in another view."""
        self._next.clear()

    def _hand(self, task: CollectiveTask, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        if task.done.is_set() or sender not in task.senders:
            return  # one that has no part in it, a newcomer say, cannot spoil it for those that have
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
            if sender is None:
                raise
            task.fail(FrameRefused(f"a chunk of worker {sender} cannot be handled: {error!r}"), sender)
        self._settle(task)

    def _settle(self, task: CollectiveTask) -> None:
        if task.done.is_set() and self._tasks.pop(task.key, None) is not None:
            task.ended = now()
