"""Sends to peers: chunks as window and rate limit allow, heartbeats, acknowledgements and requests to send again."""

import contextlib
from collections.abc import Iterable

import msgspec
import zmq

from shoal.core.clock import now
from shoal.hosts.status_board import StatusBoard
from shoal.transport.incoming_messages import IncomingMessages
from shoal.transport.messages import (
    CHUNK,
    LONGEST_REASON,
    AnyMessage,
    ChunkAck,
    ChunkHeader,
    FramePayload,
    LinkClosed,
    LinkHeartbeat,
    MessageAck,
    MessageChunk,
    encode,
)
from shoal.transport.peer import LinkPeer
from shoal.transport.rate_limit import RateLimit
from shoal.transport.reliable import HEAD, ChunkInFlight, IncomingLink
from shoal.transport.tasks import CollectiveTask

BEAT = 0.5
"""Seconds after which something is said to a peer, if only that we live."""
ACK_CHUNKS, ACK_SECONDS = 4, 0.1
"""Chunks, or seconds after the first of them, that are acknowledged without waiting for a chunk to do it. Fewer chunks
never fill a window, so nobody waits for this word but who closes; every one of its own wakes two processes."""
NEAR = 2 * CHUNK
"""Bytes under way with a chunk that may acknowledge: behind more it would come late."""
ASK_AGAIN = 0.1
SHARE = 8
"""Where collectives and messages both wait: every how-manieth chunk, and which share of the window, is a message's."""


class ChunkSender:
    """Of one worker, in one view after the other."""

    def __init__(self, run: str, rank: int, board: StatusBoard, allowance: RateLimit | None) -> None:
        self.run, self.rank, self.board, self.allowance = run, rank, board, allowance
        self.generation = 0
        self.ack_seconds = ACK_SECONDS

    def send(self, task: CollectiveTask, peer: LinkPeer, phase: int, index: int, payload: FramePayload) -> None:
        """A chunk of `task` leaves as soon as it may."""
        chunk = ChunkHeader(
            self.run,
            self.generation,
            0,
            self.rank,
            0,
            *task.key,
            task.kind,
            phase,
            index,
            task.total,
            0,
            payload.dtype,
            payload.shape,
            payload.crc,
        )
        peer.out.queue(chunk, payload, task.urgency)
        self.pump(peer)

    def pump(self, peer: LinkPeer) -> None:
        """Everything leaves that may."""
        while self._send_next(peer):
            pass

    def _send_next(self, peer: LinkPeer) -> bool:
        """A chunk leaves, if one may: of a collective first, and of a message now and then all the same."""
        if not self._may():
            return False
        if peer.collective_turns >= SHARE and self._send_message(peer):
            return True
        return self._send_collective(peer) or self._send_message(peer)

    def _send_collective(self, peer: LinkPeer) -> bool:
        """What comes before its receiver is in the view is dropped there, and what waits in a socket that is not
        connected is sent again when it is: both would be twice on the link."""
        flying = peer.out.next(now()) if peer.up and peer.generation >= self.generation else None
        if flying is not None:
            peer.collective_turns += 1
            self.transmit(peer, flying)
        return flying is not None

    def _send_message(self, peer: LinkPeer) -> bool:
        """Messages know no view. They may be late, so they leave room for collectives that wait."""
        out = peer.message_out
        if out is None or not peer.up:
            return False
        window = out.link.estimate.near
        flying = out.next(now(), window // SHARE if peer.out.waiting else window)
        if flying is not None:
            peer.collective_turns = 0
            self.transmit(peer, flying)
        return flying is not None

    def _may(self) -> bool:
        return self.allowance is None or self.allowance.wait(now()) <= 0

    def spend(self, peers: Iterable[LinkPeer]) -> None:
        """What has become free of the allowance goes to the peers in turn."""
        waiting = [peer for peer in peers if self.allowance is not None and peer.has_waiting]
        while waiting and self._may():
            waiting = [peer for peer in waiting if self._send_next(peer)]

    def transmit(self, peer: LinkPeer, flying: ChunkInFlight[ChunkHeader] | ChunkInFlight[MessageChunk]) -> None:
        """Put a chunk on its way, for the first time or again."""
        stamp = now()
        flying.sent = stamp
        head = self._fill_in(peer, flying.chunk, int(stamp * 1e9))
        with contextlib.suppress(zmq.Again):  # there is no connection any more: it leaves again when there is one
            peer.way.send(encode(head), zmq.SNDMORE | zmq.NOBLOCK)
            peer.way.send(flying.payload.frame, zmq.NOBLOCK, copy=False)
        peer.told = stamp
        self._count(flying.payload.size + HEAD)

    def _fill_in(self, peer: LinkPeer, chunk: ChunkHeader | MessageChunk, stamp: int) -> AnyMessage:
        """The chunk's head as it leaves now, with an acknowledgement where it would not come late."""
        if isinstance(chunk, ChunkHeader):
            expected, echo, held = self._heard(peer.into) if peer.out.under_way <= NEAR else (0, 0, 0)
            return msgspec.structs.replace(
                chunk, step=self._step(), stamp=stamp, expected=expected, echo=echo, held=held
            )
        back, (expected, echo, held) = 0, (0, 0, 0)
        inbox = peer.message_in
        near = peer.message_out is not None and peer.message_out.link.under_way <= NEAR
        if inbox is not None and not inbox.closed and near:
            back, (expected, echo, held) = inbox.stream, self._heard(inbox.link)
        run, generation, step, sender, _ = self._head()
        return msgspec.structs.replace(
            chunk, run=run, generation=generation, step=step, sender=sender, stamp=stamp,
            back=back, expected=expected, echo=echo, held=held,
        )  # fmt: skip

    def repeat(self, peer: LinkPeer) -> None:
        """All that is under way of collectives leaves again."""
        for flying in peer.out.flying:
            self.transmit(peer, flying)
        peer.again = now()

    def repeat_messages(self, peer: LinkPeer) -> None:
        """All that is under way of messages leaves again."""
        for flying in peer.message_out.link.flying if peer.message_out is not None else ():
            self.transmit(peer, flying)

    def _say(self, peer: LinkPeer, message: AnyMessage) -> None:
        with contextlib.suppress(zmq.Again):  # a peer that misses it asks again
            peer.aside.send(encode(message), zmq.NOBLOCK)
        peer.told = now()
        self._count(HEAD)

    def _count(self, size: int) -> None:
        if self.allowance is not None:
            self.allowance.spent(size, now())

    def _head(self) -> tuple[str, int, int, int, int]:
        return self.run, self.generation, self._step(), self.rank, 0

    def _step(self) -> int:
        return max(0, self.board.step(self.rank))

    def beat(self, peer: LinkPeer) -> None:
        """We live, and what we do."""
        self._say(peer, LinkHeartbeat(*self._head(), int(now() * 1e9), self.board.state(self.rank)))

    def echo(self, peer: LinkPeer, stamp: int) -> None:
        """The answer to a beat."""
        self._say(peer, ChunkAck(*self._head(), peer.into.expected, stamp, 0))

    def ack(self, peer: LinkPeer, again: bool = False) -> None:
        """What has come; `again`: what is under way is to be sent once more."""
        self._say(peer, ChunkAck(*self._head(), *self._heard(peer.into), again))

    def _ack_messages(self, peer: LinkPeer, inbox: IncomingMessages) -> None:
        self._say(peer, MessageAck(*self._head(), inbox.stream, *self._heard(inbox.link)))

    def say_closed(self, peer: LinkPeer, inbox: IncomingMessages) -> None:
        """The peer's stream was dropped here: it must begin another one."""
        self._say(peer, MessageAck(*self._head(), inbox.stream, inbox.link.expected, 0, 0, closed=True))

    def _heard(self, into: IncomingLink) -> tuple[int, int, int]:
        """What an acknowledgement says: chunks that have come, the last one's stamp, how long ago that was."""
        held = int((now() - into.stamped) * 1e9) if into.stamp else 0
        said = into.expected, into.stamp, held
        into.unsaid = into.stamp = 0
        return said

    def acknowledge(self, peer: LinkPeer, moment: float) -> None:
        """If enough has come since the last time, or it came long enough ago."""
        if self._is_due(peer.into, moment):
            self.ack(peer)
        if peer.message_in is not None and self._is_due(peer.message_in.link, moment):
            self._ack_messages(peer, peer.message_in)

    def _is_due(self, into: IncomingLink, moment: float) -> bool:
        return into.unsaid >= ACK_CHUNKS or (into.unsaid > 0 and moment - into.since >= self.ack_seconds)

    def ask_again(self, peer: LinkPeer) -> None:
        """Something is missing; not oftener than it could be sent."""
        if self._may_ask(peer, peer.into):
            self.ack(peer, again=True)

    def ask_messages_again(self, peer: LinkPeer, inbox: IncomingMessages, stream: int) -> None:
        """The same of the peer's message stream, which may be one that has not begun here."""
        if self._may_ask(peer, inbox.link):
            expected = inbox.link.expected if stream == inbox.stream else 0
            self._say(peer, MessageAck(*self._head(), stream, expected, 0, 0, again=True))

    def _may_ask(self, peer: LinkPeer, into: IncomingLink) -> bool:
        moment = now()
        if moment - into.asked <= max(ASK_AGAIN, peer.out.estimate.rtt or 0.0):
            return False
        into.asked = moment
        return True

    def goodbye(self, peer: LinkPeer, reason: str, lost: int) -> None:
        self._say(peer, LinkClosed(*self._head(), reason[:LONGEST_REASON], lost))
