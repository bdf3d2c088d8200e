"""What a worker says to its peers: chunks as their links and its allowance let them, and the short words beside them.

    chunk       queued by a task ── its turn in the window ── way ──> peer
    ack, beat, bye                                     ── aside ──> peer      (see peer.py)

What has come is acknowledged by the next chunk that leaves, if it leaves soon; else by an Ack of its own.

Everything in here runs in the communication thread; what comes back is heard in `loop.py`.
"""

import contextlib
from collections.abc import Iterable

import msgspec
import zmq

from shoal.cluster.board import Board
from shoal.cluster.links.allowance import Allowance
from shoal.cluster.links.frames import CHUNK, Payload
from shoal.cluster.links.link import HEAD, Flying
from shoal.cluster.links.messages import LONGEST_REASON, Ack, AnyMessage, Beat, Bye, Chunk, encode
from shoal.cluster.links.peer import Peer
from shoal.cluster.links.task import Task
from shoal.core.clock import now

BEAT = 0.5
"""Seconds after which something is said to a peer, if only that we live."""
ACK_CHUNKS, ACK_SECONDS = 4, 0.1
"""Chunks, or seconds after the first of them, that are acknowledged without waiting for a chunk to do it. Fewer chunks
never fill a window, so nobody waits for this word but who closes; every one of its own wakes two processes."""
NEAR = 2 * CHUNK
"""Bytes under way with a chunk that may acknowledge: behind more it would come late."""
ASK_AGAIN = 0.1


class Speaker:
    """Of one worker, in one view after the other."""

    def __init__(self, run: str, rank: int, board: Board, allowance: Allowance | None) -> None:
        self.run, self.rank, self.board, self.allowance = run, rank, board, allowance
        self.epoch = 0
        self.ack_seconds = ACK_SECONDS

    def send(self, task: Task, peer: Peer, phase: int, index: int, payload: Payload) -> None:
        """A chunk of `task` leaves as soon as it may."""
        chunk = Chunk(
            self.run,
            self.epoch,
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

    def pump(self, peer: Peer) -> None:
        """Everything leaves that may."""
        while self._send_next(peer):
            pass

    def _send_next(self, peer: Peer) -> bool:
        """A chunk leaves, if one may. What comes before its receiver is in the view is dropped there, and what waits in
        a socket that is not connected is sent again when it is: both would be twice on the link."""
        there = peer.up and peer.epoch >= self.epoch
        flying = peer.out.next(now()) if there and self._may() else None
        if flying is not None:
            self.transmit(peer, flying)
        return flying is not None

    def _may(self) -> bool:
        return self.allowance is None or self.allowance.wait(now()) <= 0

    def spend(self, peers: Iterable[Peer]) -> None:
        """What has become free of the allowance goes to the peers in turn."""
        waiting = [peer for peer in peers if self.allowance is not None and peer.out.waiting]
        while waiting and self._may():
            waiting = [peer for peer in waiting if self._send_next(peer)]

    def transmit(self, peer: Peer, flying: Flying) -> None:
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

    def repeat(self, peer: Peer) -> None:
        """All that is under way leaves again."""
        for flying in peer.out.flying:
            self.transmit(peer, flying)
        peer.again = now()

    def _say(self, peer: Peer, message: AnyMessage) -> None:
        with contextlib.suppress(zmq.Again):  # whoever misses it asks again
            peer.aside.send(encode(message), zmq.NOBLOCK)
        peer.told = now()
        self._count(HEAD)

    def _count(self, size: int) -> None:
        if self.allowance is not None:
            self.allowance.spent(size, now())

    def _head(self) -> tuple[str, int, int, int, int]:
        return self.run, self.epoch, self._step(), self.rank, 0

    def _step(self) -> int:
        return max(0, self.board.step(self.rank))

    def beat(self, peer: Peer) -> None:
        """We live, and what we do."""
        self._say(peer, Beat(*self._head(), int(now() * 1e9), self.board.state(self.rank)))

    def echo(self, peer: Peer, stamp: int) -> None:
        """The answer to a beat."""
        self._say(peer, Ack(*self._head(), peer.into.expected, stamp, 0))

    def ack(self, peer: Peer, again: bool = False) -> None:
        """What has come; `again`: what is under way is to be sent once more."""
        self._say(peer, Ack(*self._head(), *self._heard(peer), again))

    def _heard(self, peer: Peer) -> tuple[int, int, int]:
        """What an acknowledgement says: chunks that have come, the last one's stamp, how long ago that was."""
        into = peer.into
        held = int((now() - into.stamped) * 1e9) if into.stamp else 0
        said = into.expected, into.stamp, held
        into.unsaid = into.stamp = 0
        return said

    def acknowledge(self, peer: Peer, moment: float) -> None:
        """If enough has come since the last time, or it came long enough ago."""
        into = peer.into
        if into.unsaid >= ACK_CHUNKS or (into.unsaid and moment - into.since >= self.ack_seconds):
            self.ack(peer)

    def ask_again(self, peer: Peer) -> None:
        """Something is missing; not oftener than it could be sent."""
        moment = now()
        if moment - peer.into.asked > max(ASK_AGAIN, peer.out.estimate.rtt or 0.0):
            peer.into.asked = moment
            self.ack(peer, again=True)

    def goodbye(self, peer: Peer, reason: str, lost: int) -> None:
        self._say(peer, Bye(*self._head(), reason[:LONGEST_REASON], lost))
