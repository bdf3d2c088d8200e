"""Receives frames from peers: checks them, sorts them by message type, and suspects peers that break the protocol.

    endpoint ─▶ decode ─▶ known sender, this run? ─┬─ ChunkHeader ─▶ TaskTable       ├─ LinkHeartbeat ─▶ echo
                                                   ├─ MessageChunk ─▶ MessageExchange ├─ LinkClosed
                                                   └─ ChunkAck, MessageAck ─▶ ChunkSender

One bad frame is dropped and sent again. A peer that breaks the protocol is suspected, and ignored for the rest of the
view; all others are heard on.
"""

from collections.abc import Mapping

import zmq

from shoal.core.clock import now
from shoal.core.errors import ShoalError
from shoal.transport.connection import AcceptedConnection, is_readable
from shoal.transport.endpoint import LinkEndpoint
from shoal.transport.message_exchange import MessageExchange
from shoal.transport.messages import (
    ChunkAck,
    ChunkHeader,
    FrameRefused,
    LinkClosed,
    LinkHeartbeat,
    MessageAck,
    MessageChunk,
    split_frame,
    unpack,
)
from shoal.transport.peer import LinkPeer
from shoal.transport.reliable import ACK_CHUNKS
from shoal.transport.sender import ChunkSender
from shoal.transport.tasks import TaskTable

AT_ONCE = 128
"""Frames received before anything is sent: more would delay acknowledgements."""
MOST_REFUSED = 1000
"""Unreadable messages of a peer in one view before it is suspected: a bad link spoils one in a million."""


class FrameReceiver:
    """The receiving half of the communication thread."""

    def __init__(
        self,
        run: str,
        endpoint: LinkEndpoint,
        peers: Mapping[int, LinkPeer],
        tasks: TaskTable,
        sender: ChunkSender,
        exchange: MessageExchange[LinkPeer],
        suspects: dict[int, str],
    ) -> None:
        """`peers` and `suspects` are the communication thread's own, which changes them with the view."""
        self.run_id, self.endpoint, self.peers, self.tasks = run, endpoint, peers, tasks
        self.chunk_sender, self.exchange, self.suspects = sender, exchange, suspects
        self.refused = self.stale = self.repeated = 0
        """Frames that were unreadable, of another generation, or received before."""

    def receive(self) -> None:
        """Take in the frames that have arrived, at most `AT_ONCE`."""
        socket = self.endpoint.socket
        for _ in range(AT_ONCE):
            try:
                # Without a copy: a frame's memory is libzmq's until the chunk has been added up.
                parts = [socket.recv(zmq.NOBLOCK, copy=False)]
                while parts[-1].more:  # ZeroMQ delivers all parts or none
                    parts.append(socket.recv(zmq.NOBLOCK, copy=False))
            except zmq.Again:
                return
            self._receive_one(parts)
            # Asking is 3× cheaper than catching `zmq.Again`.
            if not is_readable(socket):
                return

    def _receive_one(self, parts: list[zmq.Frame]) -> None:
        """Handle one message. Any error in it is its sender's fault, so it must not end the thread."""
        peer = self._sender_of(parts[0])
        # An evicted peer keeps its connection until it sends something, because before that its descriptor is not
        # known.
        if peer is None and self.endpoint.handshakes is not None:  # its key was listed once, and is not any more
            self.refused += 1
            self.endpoint.cut(AcceptedConnection.of(parts[0]))
        elif peer is None or peer.rank not in self.suspects:
            try:
                self._hear(parts, peer)
            except FrameRefused as error:
                self.refused += 1
                # A damaged frame is sent again, so one is no reason to suspect its sender.
                self._count_refused(peer, str(error))
            except Exception as error:  # noqa: BLE001  (the sender is suspected, and may be evicted)
                self.suspect(peer, f"a message of {peer} cannot be handled: {error!r}")

    def _sender_of(self, frame: zmq.Frame) -> LinkPeer | None:
        """Return the sender by the key of its connection; None without keys, or if no member has that key now."""
        if self.endpoint.handshakes is None:
            return None
        name, connection = frame.get("User-Id"), AcceptedConnection.of(frame)
        if self.endpoint.unfinished is not None:
            self.endpoint.unfinished.heard(connection.descriptor)
        for rank, peer in self.peers.items():
            if name == (peer.entry.member or str(rank)):
                peer.connections.add(connection)
                return peer
        return None

    def close_unfinished(self) -> None:
        """Close connections that fill this worker's memory with messages that do not end."""
        if self.endpoint.unfinished is None:
            return
        for fd, (address, _) in self.endpoint.unfinished.look(now(), drained=not is_readable(self.endpoint.socket)):
            for peer in self.peers.values():
                if AcceptedConnection(fd, address) in peer.connections:
                    self.suspect(peer, f"{peer} sends a message that does not end")

    def _count_refused(self, peer: LinkPeer | None, why: str) -> None:
        if peer is not None:
            peer.refused += 1
            if peer.refused >= MOST_REFUSED:
                self.suspect(peer, f"{peer.refused} messages of {peer} were refused; the last: {why}")

    def suspect(self, peer: LinkPeer | None, why: str) -> None:
        if peer is None:  # without keys all peers are workers of this host, so this is a bug
            raise ShoalError(why)
        self.suspects.setdefault(peer.rank, why)
        self.exchange.lose(peer, why)

    def _hear(self, parts: list[zmq.Frame], known: LinkPeer | None) -> None:
        message, piece = split_frame(parts[0].buffer)
        peer = self.peers.get(message.sender)
        if (
            peer is None
            or message.run != self.run_id
            or len(parts) != 1 + isinstance(message, ChunkHeader)
            or (piece is not None) != isinstance(message, MessageChunk)
        ):
            raise FrameRefused(f"a message of run {message.run!r} from {message.sender}, in {len(parts)} parts")
        if known is not None and known is not peer:
            raise FrameRefused(f"a message that says it is from worker {message.sender}, under another's key")
        # Any valid message is a sign of life, whatever its generation: chunks of a large bucket may keep heartbeats
        # waiting.
        peer.heard, peer.step = now(), message.step
        entered, peer.generation = message.generation > peer.generation, max(peer.generation, message.generation)
        if isinstance(message, LinkHeartbeat):
            peer.state = message.state
            self.chunk_sender.echo(peer, message.stamp)
        elif isinstance(message, LinkClosed):
            peer.bye = message
        elif isinstance(message, MessageChunk) and piece is not None:
            self.exchange.hear(peer, message, piece)
        elif isinstance(message, MessageAck):
            self.exchange.hear_ack(peer, message)
        # Everything below belongs to collectives, which end with their view; messages above outlive it.
        elif message.generation != self.chunk_sender.generation:
            self.stale += 1
        elif isinstance(message, ChunkAck):
            self._acked(peer, message.expected, message.stamp, message.held, message.again)
        elif isinstance(message, ChunkHeader):
            self._take(peer, message, parts[1])
            if message.expected:
                self._acked(peer, message.expected, message.echo, message.held)
        # What waited for the peer to enter this view may leave now.
        if entered:
            self.chunk_sender.pump(peer)

    def _take(self, peer: LinkPeer, chunk: ChunkHeader, frame: zmq.Frame) -> None:
        if chunk.seq < peer.into.expected:
            self.repeated += 1
            peer.into.unacknowledged += ACK_CHUNKS  # acknowledge at once: the last acknowledgement was lost
            return
        if chunk.seq > peer.into.expected:
            self.chunk_sender.ask_again(peer)
            return
        try:
            payload = unpack(chunk, frame)
        except FrameRefused:
            self.chunk_sender.ask_again(peer)
            raise
        if not self.tasks.room(peer.rank, chunk, payload, len(self.peers)):
            return  # not acknowledged, so it is sent again
        peer.into.take(chunk, peer.heard or now())
        peer.largest = max(peer.largest, payload.size)
        self.tasks.give(peer.rank, chunk, payload)

    def _acked(self, peer: LinkPeer, expected: int, stamp: int, held: int, again: bool = False) -> None:
        moment = now()
        if stamp:
            peer.out.estimate.round_trip(moment - (stamp + held) / 1e9, moment)
        peer.out.acknowledged(expected, moment)
        if again and peer.out.may_repeat(moment):
            self.chunk_sender.repeat(peer)
        self.chunk_sender.pump(peer)
