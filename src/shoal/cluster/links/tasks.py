"""Tasks that are under way at one worker, and chunks of those that it has not been handed yet: a peer may be ahead.

Everything in here runs in the communication thread.
"""

from collections import Counter
from collections.abc import Callable

from shoal.cluster.links.frames import Payload
from shoal.cluster.links.messages import Chunk
from shoal.cluster.links.refused import Refused
from shoal.cluster.links.task import Task
from shoal.core.clock import now
from shoal.core.errors import LayoutError, ShoalError

LARGEST_EARLY = 256 << 20
"""Bytes of tasks that were not handed in yet, of all peers: they may be ahead, but not without end."""
EARLY_HEAD = 1024
"""Bytes that a chunk takes beside its payload while it waits, whether its payload is empty or not."""


class Tasks:
    """Of worker `rank`; each is known by its channel and its number there."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._tasks: dict[tuple[int, int], Task] = {}
        self._next: Counter[int] = Counter()
        self._early: dict[tuple[int, int], list[tuple[int, Chunk, Payload]]] = {}
        self._early_bytes: Counter[int] = Counter()
        """By peer: what one sends takes no room from the others."""

    def add(self, task: Task, begin: Callable[[], None]) -> None:
        """Begin a task; what peers have sent of it already is waiting."""
        self._tasks[task.key] = task
        self._next[task.channel] = task.number + 1
        self._do(task, begin)
        for sender, chunk, payload in self._early.pop(task.key, ()):
            self._early_bytes[sender] -= payload.size + EARLY_HEAD
            self._hand(task, sender, chunk, payload)

    def room(self, sender: int, chunk: Chunk, payload: Payload, peers: int) -> bool:
        """Whether it may be given; else it must come again. `peers` share the room."""
        most = LARGEST_EARLY // max(1, peers)
        return not self._is_early(chunk) or self._early_bytes[sender] + payload.size + EARLY_HEAD <= most

    def give(self, sender: int, chunk: Chunk, payload: Payload) -> None:
        """To its task, now or when that is handed in; of one that is over it changes nothing."""
        key = (chunk.channel, chunk.task)
        if self._is_early(chunk):
            self._early.setdefault(key, []).append((sender, chunk, payload))
            self._early_bytes[sender] += payload.size + EARLY_HEAD
        elif (task := self._tasks.get(key)) is not None:
            self._hand(task, sender, chunk, payload)

    def _is_early(self, chunk: Chunk) -> bool:
        return chunk.task >= self._next[chunk.channel] and (chunk.channel, chunk.task) not in self._tasks

    def abort(self, error: ShoalError) -> None:
        """End all; chunks of this epoch that still come change nothing."""
        for task in self._tasks.values():
            task.fail(error)
        self._tasks.clear()
        self._early.clear()
        self._early_bytes.clear()

    def begin_anew(self) -> None:
        """Numbers do, in another view."""
        self._next.clear()

    def _hand(self, task: Task, sender: int, chunk: Chunk, payload: Payload) -> None:
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

    def _do(self, task: Task, work: Callable[[], None], sender: int | None = None) -> None:
        try:
            work()
        except ShoalError as error:
            task.fail(error, sender)
        except Exception as error:
            if sender is None:
                raise
            task.fail(Refused(f"a chunk of worker {sender} cannot be handled: {error!r}"), sender)
        self._settle(task)

    def _settle(self, task: Task) -> None:
        if task.done.is_set() and self._tasks.pop(task.key, None) is not None:
            task.ended = now()
