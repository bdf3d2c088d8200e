"""Messages between members in any view, for modes in which workers are in different steps.

    ticket = messenger.push("w2.1", "gradients", head, [array], supersedes="layer 3")   # one way
    reply = messenger.call("w0.1", "parameters", head, deadline=30.0)                    # at most once
    messenger.serve("parameters", handler, credit=16)                                    # receives both

Members are named by their ids, or by their ranks as text if members do not change. Messages of one sender arrive once
and, at equal priority on one port, in order. A view change does not affect them; if a member is lost, everything that
waits for it fails with PeerLost.
"""

import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, ShoalError, UsageError
from shoal.transport.message_body import MessageBody
from shoal.transport.message_exchange import MessageExchange
from shoal.transport.message_ports import (
    CallFailed,
    CallReply,
    Handler,
    Job,
    PendingCall,
    ReceivedMessage,
    ServedPort,
    run_handler,
)
from shoal.transport.message_ticket import MessageTicket, OutgoingMessage
from shoal.transport.messages import Array, MessageKind
from shoal.transport.outgoing_messages import MOST_PORTS

__all__ = ["CallFailed", "CallReply", "MessageTicket", "Messenger", "ReceivedMessage"]

LARGEST_MESSAGE = 1 << 30
"""Largest message or reply in bytes, unless its receiver sets another limit."""
SMALL = 16 << 10
"""Bytes of a message that its own thread may send: more would keep it from computing."""
LONGEST_PORT = 32
LOOK = 0.5
"""Seconds between two checks, in a wait, whether the communication thread still runs."""
PORT_LOOK = 5.0
"""The same in the idle thread of a port."""


class MessageLoop(Protocol):
    """The communication thread, as other threads see it."""

    rank: int
    exchange: MessageExchange[Any]

    def call(self, command: Callable[[], None]) -> None:
        """Do this soon."""

    def call_at_once(self, command: Callable[[], None]) -> None:
        """Do this now, in the thread that asks, if the communication thread is idle; else soon."""

    @property
    def ident(self) -> int | None: ...

    def is_alive(self) -> bool: ...


class Messenger:
    """The messages of one worker. Any thread may use it, but a handler of the communication thread must not `call`."""

    def __init__(self, loop: MessageLoop) -> None:
        self._loop = loop
        self._queues: list[SimpleQueue[Job | None]] = []
        self._served: set[str] = set()
        self._lock = threading.Lock()

    def push(
        self,
        to: str,
        port: str,
        head: bytes = b"",
        arrays: Sequence[Array] = (),
        *,
        priority: int = 0,
        supersedes: Hashable = None,
    ) -> MessageTicket:
        """Send one way; the arrays must not change until the ticket is done.

        A higher priority leaves first. A newer push to the same member and port with the same `supersedes` replaces
        this one if nothing of it has left yet.
        """
        ticket = MessageTicket(f"a message from worker {self._loop.rank} to port {port} of {to}")
        body = MessageBody(head, arrays)
        self._send(to, OutgoingMessage(MessageKind.push, _checked(port), body, ticket, priority, supersedes))
        return ticket

    def cancel(self, to: str, ticket: MessageTicket, why: str = "cancelled") -> None:
        """Send nothing more of a push; one that has left completely is still delivered."""
        error = ShoalError(f"{ticket.what} was {why}")
        self._loop.call(lambda: self._loop.exchange.cancel(to, ticket, error))

    def call(
        self,
        to: str,
        port: str,
        head: bytes = b"",
        arrays: Sequence[Array] = (),
        *,
        deadline: float,
        priority: int = 0,
        largest: int = LARGEST_MESSAGE,
    ) -> CallReply:
        """Call a member's handler, at most once, and return its answer within `deadline` seconds.

        Raise PeerLost if the member is lost, CallFailed if its handler fails, DeadlineError; all name the member. After
        a DeadlineError the handler may have run, or may still run if all of the request has left.
        """
        if threading.get_ident() == self._loop.ident:
            raise UsageError(f"a handler of the communication thread calls port {port} of {to}; serve it with a thread")
        pending = PendingCall(f"the call from worker {self._loop.rank} to port {port} of {to}", to, largest)
        message = OutgoingMessage(MessageKind.call, _checked(port), MessageBody(head, arrays), pending, priority)
        self._send(to, message)
        self._await(pending, Deadline.after(deadline))
        if pending.error is not None:
            raise pending.error
        return pending.reply

    def _await(self, pending: PendingCall, deadline: Deadline) -> None:
        error = DeadlineError(f"{pending.what} has had no reply for {deadline.budget:.0f} s")
        while not pending.done.wait(min(LOOK, deadline.left)):
            if not self._loop.is_alive():
                # A dead loop runs no command, so nothing else would ever end this wait.
                pending.end(ShoalError(f"{pending.what}: the communication thread has ended"))
            elif deadline.expired:
                # Cancelled in its own thread, but ended here: that thread may be the one that hangs.
                self._loop.call(lambda: self._loop.exchange.cancel(pending.to, pending, error))
                pending.end(error)

    def serve(
        self,
        port: str,
        handler: Handler,
        credit: int,
        *,
        largest: int = LARGEST_MESSAGE,
        threaded: bool = True,
        senders: Collection[str] | None = None,
    ) -> None:
        """Pass messages for `port` to `handler`, one at a time; it returns the reply to a call.

        `credit`: messages of one sender that may be here or on their way; more wait at the sender.
        `largest`: bytes of one message.
        `threaded`: run the handler in the port's own thread; else in the communication thread, where it must be short.
        `senders`: members that may send, None for all; `admit` adds more.
        If the handler raises PayloadError, or anything on a push, the sender is suspected; the caller of a call gets
        all other errors.
        """
        if credit < 1 or largest < 1:
            raise UsageError(f"port {port} with a credit of {credit} messages of {largest} bytes; both are 1 or more")
        with self._lock:
            if port in self._served or len(self._served) >= MOST_PORTS:
                raise UsageError(f"port {port} is served already, or {MOST_PORTS} others are; take another name")
            self._served.add(port)
        jobs: SimpleQueue[Job | None] | None = SimpleQueue() if threaded else None
        # Registered before the thread starts, so that `close` reaches every thread that runs.
        if jobs is not None:
            self._queues.append(jobs)
            name = f"shoal-port-{port}"
            threading.Thread(target=_handle_jobs, args=(jobs, handler, self._loop), name=name, daemon=True).start()
        admitted = set(senders) if senders is not None else None
        served = ServedPort(_checked(port), handler, credit, largest, admitted, jobs)
        self._loop.call(lambda: self._loop.exchange.serve(served))

    def admit(self, port: str, sender: str) -> None:
        """Let one more member send to a port that was served for some `senders` only."""
        self._loop.call(lambda: self._loop.exchange.admit(port, sender))

    def close(self) -> None:
        """End the threads of all ports, each after the handler it is in."""
        for jobs in self._queues:
            jobs.put(None)

    def _send(self, to: str, message: OutgoingMessage) -> None:
        if not self._loop.is_alive():
            raise ShoalError(f"{message.ticket.what}: the communication thread has ended")
        # A thread that sends little does it itself: to wake another thread takes longer than the work.
        call = self._loop.call_at_once if message.body.total <= SMALL else self._loop.call
        call(lambda: self._loop.exchange.send(to, message))


def _checked(port: str) -> str:
    if not 1 <= len(port) <= LONGEST_PORT:
        raise UsageError(f"a port named {port[:40]!r}; a name has 1 to {LONGEST_PORT} characters")
    return port


def _handle_jobs(jobs: "SimpleQueue[Job | None]", handler: Handler, loop: MessageLoop) -> None:
    """Run a port's handler until None comes, or the communication thread has ended."""
    while loop.is_alive():
        try:
            job = jobs.get(timeout=PORT_LOOK)
        except Empty:
            continue
        if job is None:
            return
        received, finish = job
        finish(run_handler(handler, received))
