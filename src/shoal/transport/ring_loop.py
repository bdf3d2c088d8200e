"""Messages between the processes of one host, through memory they share: the same messenger, over rings.

    sender    chunk ──> ring of this pair ── rings ──> receiver: takes all there is, says how far it came
    ring full: chunks wait at the sender, which the receiver's word wakes

Rings lose nothing, and no other process writes to them: chunks are large, have no checksum, and are never sent twice.
The owner says who is a member (`set_peers`): the next process in a slot is another one, and what was meant for the one
before it is passed over.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from shoal.core.clock import now
from shoal.core.errors import ShoalError
from shoal.hosts.doorbell import ProcessDoorbell
from shoal.transport.incoming_messages import IncomingMessages
from shoal.transport.loop_commands import LoopCommands
from shoal.transport.message_exchange import MessageExchange
from shoal.transport.message_ring import MessageRing
from shoal.transport.messages import (
    FrameRefused,
    LinkClosed,
    MessageAck,
    MessageChunk,
    MessageKind,
    ProtocolViolation,
    decode,
    encode,
)
from shoal.transport.outgoing_messages import OutgoingMessages
from shoal.transport.reliable import ACK_CHUNKS, ChunkInFlight, LinkEstimate, OutgoingLink
from shoal.transport.rings import HostRings

PIECE = 512 << 10
WINDOW = 4 * PIECE
"""Bytes to one member that are under way: less than its ring, which also has room for what is short."""
SMALL = PIECE // 8
"""Bytes of pieces of which a few may stay unacknowledged, because they do not fill the window."""
# TICK bounds the sleep if a bell is missed. In BUSY the thread only yields: to be woken takes longer than an answer.
TICK, BUSY = 0.2, 50e-6
"""Seconds of sleep at the most; and those after work in which more is looked for before it sleeps."""
AT_ONCE = 64
# Threads cannot be killed, so `close` leaves one behind if its handler takes longer.
LONGEST_END = 10.0
"""Seconds in which a handler that runs in this thread may come to its end."""


class RingEstimate(LinkEstimate):
    """Of memory: nothing is measured."""

    @property
    def near(self) -> int:
        return WINDOW

    def delivered(self, size: int, seconds: float) -> None:
        """It tells nothing that would change."""


@dataclass
class RingPeer:
    """The way to one member of this host."""

    slot: int
    name: str
    out: MessageRing
    into: MessageRing
    bell: ProcessDoorbell
    message_out: OutgoingMessages | None = None
    message_in: IncomingMessages | None = None
    largest: int = 0
    heard: float | None = None
    bye: LinkClosed | None = None
    waiting: deque[tuple[bytes, memoryview]] = field(default_factory=deque)
    """Frames for which there was no room."""
    is_ack_due: bool = False
    """Whether the peer waits for an acknowledgement, of a push or of what fills its window."""
    up: ClassVar[bool] = False
    """Nothing is lost, so nothing is ever sent again."""
    piece: ClassVar[int] = PIECE

    def open_messages(self, streams: Callable[[], int], numbers: Callable[[], int]) -> OutgoingMessages:
        link = OutgoingLink[MessageChunk](RingEstimate())
        return OutgoingMessages(f"{self}", streams, numbers, link, piece=PIECE)

    def put(self, head: bytes, body: memoryview) -> None:
        # Behind those that wait already, to keep the order.
        if self.waiting or not self.out.put(head, body):
            self.waiting.append((head, body))
        self.bell.ring()

    def flush(self) -> bool:
        """Put in what has waited; whether anything has found room."""
        before = len(self.waiting)
        while self.waiting and self.out.put(*self.waiting[0]):
            self.waiting.popleft()
        if len(self.waiting) < before:
            self.bell.ring()
        return len(self.waiting) < before

    def gone_text(self, moment: float) -> str:
        return ""

    def silent(self, now: float, floor: float) -> float | None:
        return None

    def describe(self, now: float) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"worker {self.slot}"


class RingSender:
    """Of one worker. A frame says from whom it is and for whom: `run` of its head."""

    def __init__(self, rank: int, name: str) -> None:
        self.rank, self.name = rank, name

    def pump(self, peer: RingPeer) -> None:
        while peer.message_out is not None and not peer.waiting:
            flying = peer.message_out.next(now(), WINDOW)
            if flying is None:
                return
            self.transmit(peer, flying)

    def transmit(self, peer: RingPeer, flying: ChunkInFlight[MessageChunk]) -> None:
        """Put a chunk in the ring, with an acknowledgement of what has come from the peer."""
        inbox, back, expected = peer.message_in, 0, 0
        if inbox is not None and not inbox.closed:
            back, expected = inbox.stream, self._heard(peer, inbox)
        head = msgspec.structs.replace(
            flying.chunk, run=_pair(self.name, peer.name), sender=self.rank, back=back, expected=expected
        )
        peer.put(encode(head), flying.payload.frame.buffer)

    def repeat_messages(self, peer: RingPeer) -> None:
        """Do nothing: rings lose nothing, so no chunk is sent again."""

    def acknowledge(self, peer: RingPeer) -> None:
        """Say how far this worker came with what the peer has sent, if the peer waits for it.

        No caller waits for the arrival of a call or reply, and telling it would wake a process. The next chunk says it.
        """
        inbox = peer.message_in
        if inbox is None or inbox.closed or not inbox.link.unacknowledged:
            return
        if peer.is_ack_due or inbox.link.unacknowledged >= ACK_CHUNKS:
            self._say(peer, inbox.stream, self._heard(peer, inbox))

    def _heard(self, peer: RingPeer, inbox: IncomingMessages) -> int:
        inbox.link.unacknowledged, peer.is_ack_due = 0, False
        return inbox.link.expected

    def ask_messages_again(self, peer: RingPeer, inbox: IncomingMessages, stream: int) -> None:
        """What came before was passed over while the peer was no member here: it must begin another stream."""
        self._say(peer, stream, 0, closed=True)

    def say_closed(self, peer: RingPeer, inbox: IncomingMessages) -> None:
        self._say(peer, inbox.stream, inbox.link.expected, closed=True)

    def _say(self, peer: RingPeer, stream: int, expected: int, closed: bool = False) -> None:
        ack = MessageAck(_pair(self.name, peer.name), 0, 0, self.rank, 0, stream, expected, 0, 0, closed=closed)
        peer.put(encode(ack), memoryview(b""))


class RingLoop(threading.Thread):
    """The communication thread. Everything in here runs in it, or in its place (`LoopCommands`), but `call`,
    `call_at_once`, `set_peers` and `close`."""

    def __init__(self, rings: HostRings, slot: int, name: str) -> None:
        super().__init__(name="shoal-rings", daemon=True)
        self.rank, self.own_name = slot, name
        self._rings, self._bell = rings, rings.bell(slot)
        self._sender = RingSender(slot, name)
        self.peers: dict[int, RingPeer] = {}
        self.suspects: dict[int, str] = {}
        """By slot: members that break the protocol, and how. Nothing more of theirs is heard."""
        self._former: set[str] = set()
        self._commands = LoopCommands(self._bell.ring)
        self.exchange = MessageExchange[RingPeer](self._sender, self.peers, self.call_at_once, self._suspect)
        self._ending = False

    def call(self, command: Callable[[], None]) -> None:
        """From any thread: do this soon."""
        self._commands.post(command)

    def call_at_once(self, command: Callable[[], None]) -> None:
        """From any thread: do this now if the communication thread sleeps, else soon in that thread."""
        self._commands.run_at_once(command)

    def set_peers(self, members: Mapping[int, str]) -> None:
        """From any thread: these are the members of this host from now on, by slot."""
        self.call(lambda: self._set_peers(dict(members)))

    def _set_peers(self, members: Mapping[int, str]) -> None:
        for slot, peer in list(self.peers.items()):
            if members.get(slot) != peer.name:
                self.exchange.drop(peer)
                self._former.add(peer.name)
                self.suspects.pop(slot, None)
                del self.peers[slot]
        for slot, name in members.items():
            if slot != self.rank and slot not in self.peers:
                out, into = self._rings.ring(self.rank, slot), self._rings.ring(slot, self.rank)
                peer = self.peers[slot] = RingPeer(slot, name, out, into, self._rings.bell(slot))
                if name in self._former:  # what it said meanwhile was passed over
                    self._former.discard(name)
                    self._sender.say_closed(peer, self.exchange.inbox.get(name) or IncomingMessages())

    def close(self) -> None:
        """From any thread: end."""
        if self.is_alive():
            self.call(self._end)
            self.join(LONGEST_END)

    def _end(self) -> None:
        self._ending = True

    def run(self) -> None:
        why = "has ended"
        try:
            # Between the last work and BUSY it yields instead of sleeping: an answer is often on its way.
            worked = now()
            while not self._ending:
                # Looked at before the turn: a bell that rings during it makes the sleep return at once.
                seen, moment = self._bell.look(), now()
                with self._commands.turn:
                    has_worked = self._turn(moment)
                if has_worked:
                    worked = moment
                elif moment - worked > BUSY:
                    self._bell.sleep(seen, TICK)
                else:
                    time.sleep(0)
        except BaseException as error:  # noqa: BLE001  (told to all that wait)
            why = f"failed: {error!r}"
        finally:
            self._commands.end()
            self.exchange.abort(ShoalError(f"worker {self.rank}: the communication thread {why}"))

    def _turn(self, moment: float) -> bool:
        """Do what there is to do; whether there was anything."""
        busy = bool(self._commands)
        self._commands.run_all()
        for peer in list(self.peers.values()):
            busy |= self._hear(peer, moment) | peer.flush()
            if peer.slot not in self.suspects:
                self._sender.pump(peer)
        return busy

    def _hear(self, peer: RingPeer, moment: float) -> bool:
        """Take out what has come from a member; whether anything had."""
        for number in range(AT_ONCE):
            frame = peer.into.take()
            if frame is None or not self._take(peer, *frame, moment):
                self._sender.acknowledge(peer)
                return number > 0
            if len(frame[1]) == PIECE:  # its sender may fill the place again meanwhile
                self._sender.acknowledge(peer)
        self._sender.acknowledge(peer)
        return True

    def _take(self, peer: RingPeer, head: bytes, body: memoryview, moment: float) -> bool:
        """Hear a frame; False leaves it where it is, because its sender is a member that is not known yet."""
        try:
            message = decode(head)
            sender, _, receiver = message.run.partition(">")
            if receiver == self.own_name and sender != peer.name and sender not in self._former:
                return False
            if receiver == self.own_name and sender == peer.name and peer.slot not in self.suspects:
                peer.heard = moment
                self._dispatch(peer, message, body)
        except (ProtocolViolation, FrameRefused) as error:
            self._suspect(peer, str(error))
        peer.into.release()
        return True

    def _dispatch(self, peer: RingPeer, message: object, body: memoryview) -> None:
        if isinstance(message, MessageChunk):
            peer.is_ack_due |= message.kind == MessageKind.push or len(body) > SMALL
            self.exchange.hear(peer, message, body)
        elif isinstance(message, MessageAck):
            self.exchange.hear_ack(peer, message)
        else:
            raise ProtocolViolation(f"a {type(message).__name__} among messages")

    def _suspect(self, peer: RingPeer, why: str) -> None:
        self.suspects[peer.slot] = why
        self.exchange.lose(peer, why)


def _pair(sender: str, receiver: str) -> str:
    return f"{sender}>{receiver}"
