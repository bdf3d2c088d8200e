"""Sends to peers: chunks as window and rate limit allow, heartbeats, acknowledgements and requests to send again."""

import contextlib
from collections.abc import Iterable

import msgspec
import zmq

from shoal.core.clock import now
from shoal.hosts.status_board import StatusBoard
from shoal.transport.messages import (
    CHUNK,
    LONGEST_REASON,
    AnyMessage,
    ChunkAck,
    ChunkHeader,
    FramePayload,
    LinkClosed,
    LinkHeartbeat,
    encode,
)
from shoal.transport.peer import LinkPeer
from shoal.transport.rate_limit import RateLimit
from shoal.transport.reliable import HEAD, ChunkInFlight
from shoal.transport.tasks import CollectiveTask

BEAT = 0.5
"""Seconds after which something is said to a peer, if only that we live."""
ACK_CHUNKS, ACK_SECONDS = 4, 0.1
"""Chunks, or seconds after the first of them, that are acknowledged without waiting for a chunk to do it. Fewer chunks
never fill a window, so nobody waits for this word but who closes; every one of its own wakes two processes."""
NEAR = 2 * CHUNK
"""Bytes under way with a chunk that may acknowledge: behind more it would come late."""
ASK_AGAIN = 0.1


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
        """A chunk leaves, if one may. What comes before its receiver is in the view is dropped there, and what waits in
        a socket that is not connected is sent again when it is: both would be twice on the link."""
        there = peer.up and peer.generation >= self.generation
        flying = peer.out.next(now()) if there and self._may() else None
        if flying is not None:
            self.transmit(peer, flying)
        return flying is not None

    def _may(self) -> bool:
        return self.allowance is None or self.allowance.wait(now()) <= 0

    def spend(self, peers: Iterable[LinkPeer]) -> None:
        """What has become free of the allowance goes to the peers in turn."""
        waiting = [peer for peer in peers if self.allowance is not None and peer.out.waiting]
        while waiting and self._may():
            waiting = [peer for peer in waiting if self._send_next(peer)]

    def transmit(self, peer: LinkPeer, flying: ChunkInFlight) -> None:
        """Put a chunk on its way, for the first time or again."""
        stamp = now()
        flying.sent = stamp
        expected, echo, held = self._heard(peer) if peer.out.under_way <= NEAR else (0, 0, 0)
        chunk = msgspec.structs.replace(
            flying.chunk, step=self._step(), stamp=int(stamp * 1e9), expected=expected, echo=echo, held=held
        )
        with contextlib.suppress(zmq.Again):  # there is no connection any more: it leaves again when there is one
            peer.way.send(encode(chunk), zmq.SNDMORE | zmq.NOBLOCK)
            peer.way.send(flying.payload.frame, zmq.NOBLOCK, copy=False)
        peer.told = stamp
        self._count(flying.payload.size + HEAD)

    def repeat(self, peer: LinkPeer) -> None:
        """All that is under way leaves again."""
        for flying in peer.out.flying:
            self.transmit(peer, flying)
        peer.again = now()

    def _say(self, peer: LinkPeer, message: AnyMessage) -> None:
        with contextlib.suppress(zmq.Again):  # whoever misses it asks again
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
        self._say(peer, ChunkAck(*self._head(), *self._heard(peer), again))

    def _heard(self, peer: LinkPeer) -> tuple[int, int, int]:
        """What an acknowledgement says: chunks that have come, the last one's stamp, how long ago that was."""
        into = peer.into
        held = int((now() - into.stamped) * 1e9) if into.stamp else 0
        said = into.expected, into.stamp, held
        into.unsaid = into.stamp = 0
        return said

    def acknowledge(self, peer: LinkPeer, moment: float) -> None:
        """If enough has come since the last time, or it came long enough ago."""
        into = peer.into
        if into.unsaid >= ACK_CHUNKS or (into.unsaid and moment - into.since >= self.ack_seconds):
            self.ack(peer)

    def ask_again(self, peer: LinkPeer) -> None:
        """Something is missing; not oftener than it could be sent."""
        moment = now()
        if moment - peer.into.asked > max(ASK_AGAIN, peer.out.estimate.rtt or 0.0):
            peer.into.asked = moment
            self.ack(peer, again=True)

    def goodbye(self, peer: LinkPeer, reason: str, lost: int) -> None:
        self._say(peer, LinkClosed(*self._head(), reason[:LONGEST_REASON], lost))
