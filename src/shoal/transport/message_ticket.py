"""A message on its way to one member, and the ticket that tells its sender what becomes of it."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, ShoalError
from shoal.transport.message_body import MessageBody
from shoal.transport.messages import MessageKind


class OutcomeEvent:
    """A `threading.Event` that is set once: a lock, which costs a third, and wakes a waiter with one system call.

    An `Event` makes its waiter wait a second time, for the lock of its condition, which the thread that sets it holds.
    """

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set, self._lock = False, threading.Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Release all waiters; only one thread may call it, and only once."""
        self._is_set = True
        self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Return whether it was set within `seconds`."""
        if not self._is_set and self._lock.acquire(timeout=max(0.0, seconds)):
            self._lock.release()  # for the next waiter
        return self._is_set


class MessageTicket:
    """Tells any thread what became of a push."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = OutcomeEvent()
        """Set when the message has arrived, was replaced by a newer one, or has failed."""
        self.superseded = False
        self.error: ShoalError | None = None
        # Taken once and never released: the thread that gets it decides the outcome.
        self._once = threading.Lock()

    def wait(self, seconds: float) -> None:
        """Return when the message has arrived or was superseded; raise its error, or DeadlineError."""
        deadline = Deadline.after(seconds)
        if not self.done.wait(deadline.left):
            raise DeadlineError(
                f"{self.what} has not arrived after {seconds:.0f} s; its port may be full or not served"
            )
        if self.error is not None:
            raise self.error

    def arrived(self) -> None:
        self.end()

    def end(self, error: ShoalError | None = None) -> None:
        """Fix the outcome; later calls change nothing."""
        if self._once.acquire(blocking=False):  # a deadline and the reply may come at the same time
            self.error = error
            self.done.set()


@dataclass(eq=False)
class OutgoingMessage:
    """A message on its way."""

    kind: MessageKind
    port: str
    body: MessageBody
    ticket: MessageTicket
    priority: int = 0
    key: Hashable = None
    """A newer message of the same port and key replaces it until it has begun; None: nothing replaces it."""
    of: int = 0
    begun: Callable[["OutgoingMessage"], None] | None = None
    """Called when the message gets its number, because a reply may come any time after that."""
    left: Callable[[], None] | None = None
    """Called when all of it has left, or nothing more will."""
    order: int = -1
    number: int = -1
    cut: int = 0
    """Bytes already sent."""
    first: int = -1
    """The sequence number of its first chunk."""

    @property
    def needs_credit(self) -> bool:
        return self.kind in (MessageKind.push, MessageKind.call)

    @property
    def queue(self) -> str:
        """Return the queue it waits in: that of its port, or that of replies."""
        return self.port if self.needs_credit else ""

    def has_left(self) -> None:
        left, self.left = self.left, None
        if left is not None:
            left()

    def fail(self, error: ShoalError) -> None:
        self.has_left()
        self.ticket.end(error)
