"""What leaves for one member on the message stream: a pure state machine without sockets, threads or clocks.

push ── waits for credit of its port ── begun: cut into chunks, one at a time ── left ── arrived
          └─ superseded by a newer one     └─ cancelled

Messages of a higher priority leave first, equal ones in the order they were handed in; one whose port has no credit is
passed over. A new view changes nothing here. Only a receiver that has dropped the stream ends it: what had not begun
there leaves on another stream, the rest has failed, so nothing is ever delivered twice.
"""

import heapq
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, PeerLost, ShoalError
from shoal.transport.message_body import MessageBody
from shoal.transport.messages import CHUNK, MessageChunk, MessageKind, ProtocolViolation, pack
from shoal.transport.reliable import ChunkInFlight, LinkEstimate, OutgoingLink

MOST_PORTS = 256
"""Ports of one member that give credit; more is a lie."""
OVERTAKEN = 1
"""The urgency of all message chunks: collectives overtake them, so little of them is handed to the sockets."""


class MessageTicket:
    """What becomes of a push, for any thread."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.done = threading.Event()
        """Set when all of it has arrived, a newer one has replaced it, or it has failed."""
        self.superseded = False
        self.error: ShoalError | None = None

    def wait(self, seconds: float) -> None:
        """Return when the message has arrived or was superseded; raise what it failed by, or DeadlineError."""
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
        """From now on nothing changes."""
        if not self.done.is_set():
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
    """A newer message of the same port and key replaces it as long as it has not begun; None: none does."""
    of: int = 0
    begun: Callable[["OutgoingMessage"], None] | None = None
    """Told when it has its number: a reply may come any time from then on."""
    left: Callable[[], None] | None = None
    """Told when the last of it has left, or nothing more will."""
    order: int = -1
    number: int = -1
    cut: int = 0
    """Bytes that have left."""
    first: int = -1
    """The sequence number of its first chunk."""

    @property
    def needs_credit(self) -> bool:
        return self.kind in (MessageKind.push, MessageKind.call)

    @property
    def queue(self) -> str:
        """Where it waits: with the others of its port, or with the replies."""
        return self.port if self.needs_credit else ""

    def has_left(self) -> None:
        left, self.left = self.left, None
        if left is not None:
            left()

    def fail(self, error: ShoalError) -> None:
        self.has_left()
        self.ticket.end(error)


@dataclass
class PortCredit:
    granted: int
    largest: int
    used: int = 0


Heap = list[tuple[int, int, OutgoingMessage]]


@dataclass
class OutgoingMessages:
    """To one member; `numbers` and `streams` belong to the whole process, so that none is used twice."""

    name: str
    streams: Callable[[], int]
    numbers: Callable[[], int]
    link: OutgoingLink[MessageChunk] = field(default_factory=lambda: OutgoingLink(LinkEstimate()))
    stream: int = 0
    """0: nothing was said yet."""
    _hello: bool = False
    _grants: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Credit to be told: port -> messages, stream, largest. The newest replaces an older one that has not left."""
    _cancels: deque[int] = field(default_factory=deque)
    _unbegun: dict[str, Heap] = field(default_factory=dict)
    """By port; replies, which need no credit, under the empty name."""
    _begun: list[OutgoingMessage] = field(default_factory=list)
    _complete: deque[tuple[int, OutgoingMessage]] = field(default_factory=deque)
    """Those that have left whole, with the number of their last chunk."""
    _credits: dict[str, PortCredit] = field(default_factory=dict)
    _replaceable: dict[tuple[str, Hashable], OutgoingMessage] = field(default_factory=dict)
    _queued: int = 0

    def push(self, message: OutgoingMessage) -> None:
        """Let it leave when its turn comes, or take the place of an older one that has not begun."""
        older = self._replaceable.get((message.port, message.key)) if message.key is not None else None
        if older is not None:  # takes its place in the queue, so that endless pushes cannot starve it
            older.ticket.superseded = True
            older.ticket.end()
            older.body, older.ticket = message.body, message.ticket
            return
        message.order, self._queued = self._queued, self._queued + 1
        self._wait(message)

    def _wait(self, message: OutgoingMessage) -> None:
        heap = self._unbegun.setdefault(message.queue, [])
        heapq.heappush(heap, (-message.priority, message.order, message))
        if message.key is not None:
            self._replaceable[message.port, message.key] = message

    def grant(self, port: str, granted: int, stream: int, largest: int) -> None:
        """Tell the member how many messages it may have begun on one of our ports, in its `stream`."""
        self._grants[port] = (granted, stream, largest)

    def credit(self, port: str, granted: int, stream: int, largest: int) -> None:
        """The member gives credit on one of its ports."""
        if stream != self.stream:
            return
        if port not in self._credits and len(self._credits) >= MOST_PORTS:
            raise ProtocolViolation(f"credit on more than {MOST_PORTS} ports")
        known = self._credits.setdefault(port, PortCredit(0, largest))
        known.granted, known.largest = max(known.granted, granted), largest

    def next(self, now: float, most: int) -> ChunkInFlight[MessageChunk] | None:
        """The next chunk, with no more than `most` bytes under way."""
        link = self.link
        if link.flying and link.under_way + CHUNK > min(most, link.estimate.near):
            return None
        if not self.has_more:
            return None
        if not self._hello:
            self.stream, self._hello = self.stream or self.streams(), True
            return self._send(now, MessageKind.hello)
        if self._cancels:
            return self._send(now, MessageKind.cancel, of=self._cancels.popleft())
        if self._grants:
            port, (granted, stream, largest) = self._grants.popitem()
            return self._send(now, MessageKind.credit, port, number=granted, of=stream, total=largest)
        message = self._choose()
        return self._cut(now, message) if message is not None else None

    @property
    def has_more(self) -> bool:
        """Whether anything could leave if the window had room; asks for credit if that is what is missing."""
        if self._grants or self._cancels or self._begun:
            return True
        waiting = [port for port, heap in self._unbegun.items() if heap]
        return bool(waiting) and (not self._hello or any(self._may_begin(port) for port in waiting))

    def _may_begin(self, port: str) -> bool:
        credit = self._credits.get(port)
        return not port or (credit is not None and credit.used < credit.granted)

    def _choose(self) -> OutgoingMessage | None:
        """The one whose turn it is: begun already, or now."""
        tops = [heap[0][2] for port, heap in self._unbegun.items() if heap and self._may_begin(port)]
        candidates = [*self._begun, *tops]
        if not candidates:
            return None
        message = min(candidates, key=lambda each: (-each.priority, each.order))
        if message.number >= 0:
            return message
        heapq.heappop(self._unbegun[message.queue])
        if message.key is not None:
            del self._replaceable[message.port, message.key]
        return message if self._begin(message) else self._choose()

    def _begin(self, message: OutgoingMessage) -> bool:
        if message.needs_credit:
            credit = self._credits[message.port]
            if message.body.total > credit.largest:
                size = f"a message of {message.body.total} bytes"
                message.fail(ShoalError(f"{size}: port {message.port} of {self.name} takes at most {credit.largest}"))
                return False
            credit.used += 1
        message.number = self.numbers()
        self._begun.append(message)
        if message.begun is not None:
            message.begun(message)
        return True

    def _cut(self, now: float, message: OutgoingMessage) -> ChunkInFlight[MessageChunk] | None:
        start, total = message.cut, message.body.total
        piece = np.frombuffer(message.body.cut(start, min(start + CHUNK, total)), np.uint8)
        message.cut += len(piece)
        flying = self._send(
            now, message.kind, message.port, message.number, message.of, start // CHUNK, total, piece=piece
        )
        message.first = message.first if start else flying.chunk.seq
        if message.cut == total:
            self._begun.remove(message)
            self._complete.append((flying.chunk.seq, message))
            message.has_left()
        return flying

    def _send(
        self,
        now: float,
        kind: MessageKind,
        port: str = "",
        number: int = 0,
        of: int = 0,
        index: int = 0,
        total: int = 0,
        piece: np.typing.NDArray[np.uint8] | None = None,
    ) -> ChunkInFlight[MessageChunk]:
        payload = pack(piece if piece is not None else np.empty(0, np.uint8), "uint8")
        chunk = MessageChunk("", 0, 0, 0, 0, self.stream, kind, port, number, of, index, total, 0, payload.crc)
        self.link.queue(chunk, payload, OVERTAKEN)
        flying = self.link.next(now)
        assert flying is not None, "there was room"
        return flying

    def acknowledged(self, expected: int, now: float) -> None:
        """Everything before `expected` has arrived."""
        self.link.acknowledged(expected, now)
        while self._complete and self._complete[0][0] < self.link.arrived:
            self._complete.popleft()[1].ticket.arrived()

    def cancel(self, ticket: MessageTicket, error: ShoalError) -> None:
        """Send nothing more of its message; what has arrived of it is forgotten there."""
        for message in [each for each in self._begun if each.ticket is ticket]:
            self._begun.remove(message)
            self._cancels.append(message.number)
            message.fail(error)
        for heap in self._unbegun.values():
            for _, _, message in [entry for entry in heap if entry[2].ticket is ticket]:
                heap[:] = [entry for entry in heap if entry[2] is not message]
                heapq.heapify(heap)
                if message.key is not None:
                    del self._replaceable[message.port, message.key]
                message.fail(error)

    def restart(self, expected: int) -> None:
        """The receiver has dropped the stream after `expected` chunks: what began there is lost, the rest is resent.

        Replies are lost too: a peer that drops a link has ended its own calls.
        """
        started = [*(message for _, message in self._complete), *self._begun]
        started += [message for _, _, message in self._unbegun.pop("", [])]
        self._complete.clear()
        self._begun.clear()
        self._cancels.clear()
        self._credits.clear()
        self._grants.clear()
        self.link.reset()
        self.stream, self._hello = self.streams(), False
        for message in started:
            if message.needs_credit and message.first >= expected:
                message.number, message.cut, message.first = -1, 0, -1
                self._wait(message)
            else:
                message.fail(PeerLost(f"{self.name} has dropped the link in the middle of a message"))

    def close(self, error: ShoalError) -> None:
        """The member is lost: nothing more leaves."""
        waiting = [message for heap in self._unbegun.values() for _, _, message in heap]
        for message in [*(message for _, message in self._complete), *self._begun, *waiting]:
            message.fail(error)
        self._unbegun.clear()
        self._replaceable.clear()
        self._begun.clear()
        self._complete.clear()
        self._grants.clear()
        self._cancels.clear()
        self._credits.clear()
        self.link.reset()
        self.stream, self._hello = 0, False  # numbers restart, so the stream needs another id

    @property
    def unbegun_tickets(self) -> set[MessageTicket]:
        return {message.ticket for heap in self._unbegun.values() for _, _, message in heap}

    @property
    def is_empty(self) -> bool:
        """Whether no message waits, leaves or may still arrive."""
        return not self._begun and not self._complete and not any(self._unbegun.values())

    @property
    def idle(self) -> bool:
        """Whether all has arrived that may leave at all."""
        return self.link.idle and not self.has_more
