"""Sends to peers: chunks as window and rate limit allow, heartbeats, acknowledgements and requests to send again."""

import contextlib
from collections.abc import Iterable
from typing import cast

import msgspec
import zmq

from shoal.core.clock import now
from shoal.hosts.status_board import StatusBoard, WorkerState
from shoal.transport.incoming_messages import IncomingMessages
from shoal.transport.job_priority import JobPriority
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
    join_frame,
)
from shoal.transport.peer import LinkPeer
from shoal.transport.rate_limit import RateLimit
from shoal.transport.reliable import ACK_CHUNKS, HEAD, ChunkInFlight, IncomingLink
from shoal.transport.tasks import CollectiveTask

BEAT = 0.5
"""Seconds after which a heartbeat is sent to a peer that was sent nothing else."""
ACK_SECONDS = 0.1
"""Seconds after the first chunk that is not acknowledged yet, until it is without waiting for a chunk to do it."""
NEAR = 2 * CHUNK
"""A chunk carries an acknowledgement if at most so many bytes are under way; behind more it would arrive late."""
# Seconds between two requests at least, for links that are faster than a turn of the loop.
ASK_AGAIN = 0.1
SHARE = 8
"""While collectives and messages both wait, one chunk in so many, and that share of the window, is for messages."""


class ChunkSender:
    """The sending half of the communication thread, through all views of one worker."""

    def __init__(self, run: str, rank: int, board: StatusBoard, allowance: RateLimit | None) -> None:
        self.run, self.rank, self.board, self.allowance = run, rank, board, allowance
        self.generation = 0
        self.ack_seconds = ACK_SECONDS
        self.priority: JobPriority | None = None
        """Among the runs that share this host's link; None if this one takes its share as it comes."""

    def send(self, task: CollectiveTask, peer: LinkPeer, phase: int, index: int, payload: FramePayload) -> None:
        """Queue a chunk of `task`, and send it as soon as window and rate limit allow."""
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
        """Send all that window and rate limit allow."""
        while self._send_next(peer):
            pass

    def _send_next(self, peer: LinkPeer) -> bool:
        """Send one chunk if allowed: of a collective first, but now and then of a message, so that neither starves."""
        if not self._may():
            return False
        # Otherwise pushes of an asynchronous mode would wait for the end of every all-reduce.
        if peer.collective_turns >= SHARE and self._send_message(peer):
            return True
        return self._send_collective(peer) or self._send_message(peer)

    def _send_collective(self, peer: LinkPeer) -> bool:
        """Send a chunk of a collective, once the peer is connected and has entered this view.

        Before that it would only travel twice: a receiver drops chunks of a view it has not entered, and what waits in
        an unconnected socket is sent again when the connection is made.
        """
        if not peer.out.waiting or not peer.up or peer.generation < self.generation:
            return False
        moment, priority = now(), self.priority
        if priority is not None and not priority.may_send(moment, peer.out.under_way, peer.out.estimate.rate):
            return False
        in_flight = peer.out.next(moment)
        if in_flight is not None:
            peer.collective_turns += 1
            self.transmit(peer, in_flight)
            if priority is not None:
                priority.sent(moment, in_flight.payload.size + HEAD, peer.out.estimate.rate)
        return in_flight is not None

    def _send_message(self, peer: LinkPeer) -> bool:
        """Send a chunk of a message, in any view, with a small window while collectives wait: messages may be late."""
        out = peer.message_out
        if out is None or not peer.up or not out.has_more:
            return False
        window = out.link.estimate.near
        in_flight = out.next(now(), window // SHARE if peer.out.waiting else window)
        if in_flight is not None:
            peer.collective_turns = 0
            self.transmit(peer, in_flight)
        return in_flight is not None

    def _may(self) -> bool:
        return self.allowance is None or self.allowance.wait(now()) <= 0

    def spend(self, peers: Iterable[LinkPeer]) -> None:
        """Give what the rate limit and other runs have freed to the waiting peers in turn."""
        is_held = self.allowance is not None or self.priority is not None
        waiting = [peer for peer in peers if is_held and peer.has_waiting]
        while waiting and self._may():
            # One chunk each in turn, so that a limited line is shared equally among the peers.
            waiting = [peer for peer in waiting if self._send_next(peer)]

    def transmit(self, peer: LinkPeer, in_flight: ChunkInFlight[ChunkHeader] | ChunkInFlight[MessageChunk]) -> None:
        """Send a chunk, for the first time or again."""
        stamp = now()
        in_flight.sent = stamp
        head, payload = encode(self._fill_in(peer, in_flight.chunk, int(stamp * 1e9))), in_flight.payload
        with contextlib.suppress(zmq.Again):  # not connected: all in flight is sent again once it is
            if isinstance(in_flight.chunk, MessageChunk):
                frame, piece = join_frame(head, payload.frame.buffer)
                # Sent again, it has the bytes of now: those of the sender may change once the call is over.
                in_flight.payload = FramePayload.borrow(piece)
                peer.chunk_socket.send(frame, zmq.NOBLOCK, copy=False)
            else:
                peer.chunk_socket.send(head, zmq.SNDMORE | zmq.NOBLOCK)
                peer.chunk_socket.send(cast(zmq.Frame, payload.frame), zmq.NOBLOCK, copy=False)
        peer.told = stamp
        self._count(payload.size + HEAD)

    def _fill_in(self, peer: LinkPeer, chunk: ChunkHeader | MessageChunk, stamp: int) -> AnyMessage:
        """Return the chunk's head with the current step and time, and an acknowledgement if that would not be late."""
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
        """Send again all chunks of collectives that are in flight."""
        for in_flight in peer.out.in_flight:
            self.transmit(peer, in_flight)
        peer.again = now()

    def repeat_messages(self, peer: LinkPeer) -> None:
        """Send again all chunks of messages that are in flight."""
        for in_flight in peer.message_out.link.in_flight if peer.message_out is not None else ():
            self.transmit(peer, in_flight)

    def _say(self, peer: LinkPeer, message: AnyMessage) -> None:
        with contextlib.suppress(zmq.Again):  # a lost control message is made up for by the next one
            peer.control_socket.send(encode(message), zmq.NOBLOCK)
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
        """Send a heartbeat with this worker's state."""
        stands_back = self.priority is not None and self.priority.stands_back_for
        state = WorkerState.standing_back if stands_back else self.board.state(self.rank)
        self._say(peer, LinkHeartbeat(*self._head(), int(now() * 1e9), state))

    def echo(self, peer: LinkPeer, stamp: int) -> None:
        """Answer a heartbeat, so that its sender can measure the round trip."""
        self._say(peer, ChunkAck(*self._head(), peer.into.expected, stamp, 0))

    def ack(self, peer: LinkPeer, again: bool = False) -> None:
        """Acknowledge what has come; `again` asks the peer to send everything after it once more."""
        self._say(peer, ChunkAck(*self._head(), *self._heard(peer.into), again))

    def _ack_messages(self, peer: LinkPeer, inbox: IncomingMessages) -> None:
        self._say(peer, MessageAck(*self._head(), inbox.stream, *self._heard(inbox.link)))

    def say_closed(self, peer: LinkPeer, inbox: IncomingMessages) -> None:
        """Tell the peer that its stream was dropped here, so it must begin another one."""
        self._say(peer, MessageAck(*self._head(), inbox.stream, inbox.link.expected, 0, 0, closed=True))

    def _heard(self, into: IncomingLink) -> tuple[int, int, int]:
        """Return an acknowledgement's content: chunks received, the last one's stamp, and its age in nanoseconds."""
        held = int((now() - into.stamped) * 1e9) if into.stamp else 0
        said = into.expected, into.stamp, held
        # A stamp is answered once: the next acknowledgement without a new chunk measures nothing.
        into.unacknowledged = into.stamp = 0
        return said

    def acknowledge(self, peer: LinkPeer, moment: float) -> None:
        """Send the acknowledgements that are due."""
        if self._is_due(peer.into, moment):
            self.ack(peer)
        if peer.message_in is not None and self._is_due(peer.message_in.link, moment):
            self._ack_messages(peer, peer.message_in)

    def _is_due(self, into: IncomingLink, moment: float) -> bool:
        return into.unacknowledged >= ACK_CHUNKS or (
            into.unacknowledged > 0 and moment - into.since >= self.ack_seconds
        )

    def ask_again(self, peer: LinkPeer) -> None:
        """Ask for what is missing, at most once per round trip."""
        if self._may_ask(peer, peer.into):
            self.ack(peer, again=True)

    def ask_messages_again(self, peer: LinkPeer, inbox: IncomingMessages, stream: int) -> None:
        """Ask the same for the peer's message stream, of which this worker may not know the beginning."""
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
