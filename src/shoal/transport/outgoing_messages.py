"""The messages on their way to one member: a pure state machine without sockets, threads or clocks.

push ── waits for credit of its port ── begun: cut into chunks ── left ── arrived
          └─ superseded by a newer one     └─ cancelled

Messages of a higher priority leave first, equal ones in order; one whose port has no credit is passed over. A new view
changes nothing here. If the receiver drops the stream, messages that had not begun there leave on a new stream, and the
others fail, so nothing is ever delivered twice.
"""

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from shoal.core.errors import PeerLost, ShoalError
from shoal.transport.message_ticket import MessageTicket, OutgoingMessage
from shoal.transport.messages import CHUNK, FramePayload, MessageChunk, MessageKind, ProtocolViolation
from shoal.transport.reliable import ChunkInFlight, LinkEstimate, OutgoingLink

MOST_PORTS = 256
"""Ports of one member that may give credit; an honest member has no more."""
NOTHING = memoryview(b"")


@dataclass
class PortCredit:
    granted: int
    largest: int
    used: int = 0


Heap = list[tuple[int, int, OutgoingMessage]]


@dataclass
class OutgoingMessages:
    """The messages to one member. `numbers` and `streams` are the whole process's, so that none is used twice."""

    name: str
    streams: Callable[[], int]
    numbers: Callable[[], int]
    link: OutgoingLink[MessageChunk] = field(default_factory=lambda: OutgoingLink(LinkEstimate()))
    piece: int = CHUNK
    """Bytes of a message that leave at a time."""
    stream: int = 0
    """0 before the first message."""
    _hello: bool = False
    _grants: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Credit to send: port -> messages, stream, largest. A newer grant replaces one that has not left."""
    _cancels: deque[int] = field(default_factory=deque)
    _unbegun: dict[str, Heap] = field(default_factory=dict)
    """By port; replies need no credit, and wait under the empty name."""
    _begun: list[OutgoingMessage] = field(default_factory=list)
    _complete: deque[tuple[int, OutgoingMessage]] = field(default_factory=deque)
    """Messages sent completely, with the number of their last chunk."""
    _credits: dict[str, PortCredit] = field(default_factory=dict)
    _replaceable: dict[tuple[str, Hashable], OutgoingMessage] = field(default_factory=dict)
    _queued: int = 0

    def push(self, message: OutgoingMessage) -> None:
        """Queue a message, or replace an older one of the same key that has not begun."""
        older = self._replaceable.get((message.port, message.key)) if message.key is not None else None
        if older is not None:  # keeps its place in the queue, else a stream of newer pushes would never be sent
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
        """Send credit: how many messages of `stream` the member may have begun on one of our ports."""
        self._grants[port] = (granted, stream, largest)

    def credit(self, port: str, granted: int, stream: int, largest: int) -> None:
        """Take in credit for one of the member's ports."""
        if stream != self.stream:
            return
        if port not in self._credits and len(self._credits) >= MOST_PORTS:
            raise ProtocolViolation(f"credit on more than {MOST_PORTS} ports")
        known = self._credits.setdefault(port, PortCredit(0, largest))
        # Totals only grow; an older grant may come after a newer one when chunks are sent again.
        known.granted, known.largest = max(known.granted, granted), largest

    def next(self, now: float, most: int) -> ChunkInFlight[MessageChunk] | None:
        """Return the next chunk to send, if it keeps the bytes under way below `most`."""
        link = self.link
        # One chunk may always be under way, however small the window, or a piece larger than it would never leave.
        if not self.has_more or (link.in_flight and link.under_way + self.piece > min(most, link.estimate.near)):
            return None
        # The greeting asks for credit: until it is answered, no message may begin.
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
        """Return whether anything could leave if the window had room; a greeting counts, as it asks for credit."""
        if self._grants or self._cancels or self._begun:
            return True
        for port, heap in self._unbegun.items():  # noqa: SIM110  (a generator costs twice as much, for every chunk)
            if heap and (not self._hello or self._may_begin(port)):
                return True
        return False

    def _may_begin(self, port: str) -> bool:
        credit = self._credits.get(port)
        return not port or (credit is not None and credit.used < credit.granted)

    def _choose(self) -> OutgoingMessage | None:
        """Return the message whose turn it is, after beginning it if it has not begun."""
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
            # Checked here and at the receiver: the sender of a message that is too large gets an error, not a
            # suspicion.
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
        piece = message.body.cut(start, min(start + self.piece, total))
        message.cut += len(piece)
        in_flight = self._send(
            now, message.kind, message.port, message.number, message.of, start // self.piece, total, piece=piece
        )
        message.first = message.first if start else in_flight.chunk.seq
        if message.cut == total:
            self._begun.remove(message)
            self._complete.append((in_flight.chunk.seq, message))
            message.has_left()
        return in_flight

    def _send(
        self,
        now: float,
        kind: MessageKind,
        port: str = "",
        number: int = 0,
        of: int = 0,
        index: int = 0,
        total: int = 0,
        piece: memoryview = NOTHING,
    ) -> ChunkInFlight[MessageChunk]:
        chunk = MessageChunk("", 0, 0, 0, self.link.next_seq, self.stream, kind, port, number, of, index, total, 0)
        return self.link.launch(chunk, FramePayload.borrow(piece), now)

    def acknowledged(self, expected: int, now: float) -> None:
        """Note that every chunk before `expected` has arrived."""
        self.link.acknowledged(expected, now)
        while self._complete and self._complete[0][0] < self.link.arrived:
            self._complete.popleft()[1].ticket.arrived()

    def cancel(self, ticket: MessageTicket, error: ShoalError) -> None:
        """Send nothing more of the ticket's message; its receiver drops what has arrived of it."""
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
        """Start a new stream, because the receiver dropped this one after `expected` chunks.

        Messages that began there fail, the others are sent again. Replies fail too: a peer that drops a link has ended
        its own calls.
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
            # Its first chunk was not taken, so the receiver's handler cannot have run.
            if message.needs_credit and message.first >= expected:
                message.number, message.cut, message.first = -1, 0, -1
                self._wait(message)
            else:
                message.fail(PeerLost(f"{self.name} has dropped the link in the middle of a message"))

    def close(self, error: ShoalError) -> None:
        """Fail everything, because the member is lost."""
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
        """Return whether no message waits or is on its way."""
        return not self._begun and not self._complete and not any(self._unbegun.values())

    @property
    def idle(self) -> bool:
        """Return whether everything that may leave has arrived."""
        return self.link.idle and not self.has_more
