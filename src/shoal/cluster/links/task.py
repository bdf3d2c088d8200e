"""A task: something all members of a view do together by sending each other chunks.

The training thread hands it in and waits; `begin` and `arrived` run in the communication thread, one at a time, so a
task needs no lock. Members hand in the tasks of a channel in the same order: one is known by channel and number.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence

from shoal.cluster.links.frames import Payload
from shoal.cluster.links.messages import Chunk
from shoal.core.errors import ShoalError

Send = Callable[[int, int, int, Payload], None]
"""(peer, phase, index, payload): a chunk of this task leaves as soon as its link lets it."""


class View:
    """Who takes part, in order of rank, and this worker's place among them; everybody is known by its number here."""

    def __init__(self, ranks: Sequence[int], rank: int) -> None:
        self.ranks, self.rank = list(ranks), rank
        self.size, self.place = len(self.ranks), self.ranks.index(rank)
        self.others = [peer for peer in self.ranks if peer != rank]
        self.after = self.ranks[(self.place + 1) % self.size]
        self.before = self.ranks[(self.place - 1) % self.size]


class Task(ABC):
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
        """Who takes part, if not the whole view: only they hand it in."""
        self.done = threading.Event()
        self.error: ShoalError | None = None
        self.culprit: int | None = None
        """Whose chunk it failed by, if it was one's."""
        self.senders: Container[int] = ()
        """Who takes part, and may send chunks of it."""
        self.ended = 0.0
        """When the last chunk had come; 0 as long as it has not."""

    @property
    def key(self) -> tuple[int, int]:
        return self.channel, self.number

    @abstractmethod
    def begin(self, view: View, send: Send) -> None:
        """Send what can be sent at once; sets `done` if there is nothing to wait for."""

    @abstractmethod
    def arrived(self, sender: int, chunk: Chunk, payload: Payload) -> None:
        """A chunk of this task came, checked and for the first time; sets `done` with the last."""

    @abstractmethod
    def missing(self) -> list[int]:
        """Whom it waits for."""

    def fail(self, error: ShoalError, culprit: int | None = None) -> None:
        """Nothing will come of it."""
        if not self.done.is_set():
            self.error, self.culprit = error, culprit
            self.done.set()
