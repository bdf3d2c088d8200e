"""The communication thread: it owns the sockets, so that gradients travel while the training thread computes."""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from shoal.core.clock import now
from shoal.core.errors import PeerLost, ShoalError
from shoal.hosts.status_board import StatusBoard
from shoal.transport.connection import AcceptedConnection, is_readable
from shoal.transport.endpoint import Book, LinkEndpoint
from shoal.transport.message_exchange import MessageExchange
from shoal.transport.messages import (
    ChunkAck,
    ChunkHeader,
    FrameRefused,
    LinkClosed,
    LinkHeartbeat,
    MessageAck,
    MessageChunk,
    decode,
    unpack,
)
from shoal.transport.peer import LinkPeer
from shoal.transport.rate_limit import SHORTEST, RateLimit
from shoal.transport.sender import ACK_CHUNKS, BEAT, ChunkSender
from shoal.transport.tasks import CollectiveTask, MeshView, Send, TaskTable

TICK, SHORT_TICK = 0.1, 0.005
"""Seconds between two looks at the connections; the shorter while a member of the view is not reached yet."""
AT_ONCE = 128
"""Messages that are heard before anything is said."""
ABSENT = 1.0
"""Seconds this thread may have been away (a stopped process, a starved machine) before silence is not the peers'."""
MOST_REFUSED = 1000
"""Messages of a peer in one view that cannot be read before it is suspected: a bad link spoils one of a million."""


class IoLoop(threading.Thread):
    """Everything in here runs in the communication thread, but `call`."""

    def __init__(
        self,
        run: str,
        book: Book,
        rank: int,
        endpoint: LinkEndpoint,
        board: StatusBoard,
        allowance: RateLimit | None = None,
    ) -> None:
        super().__init__(name="shoal-links", daemon=True)
        self.run_id, self.book, self.rank, self.endpoint = run, dict(book), rank, endpoint
        self.chunk_sender = ChunkSender(run, rank, board, allowance)
        self.view = MeshView(sorted({*book, rank}), rank)
        self.peers = {peer: LinkPeer.reach(peer, entry, endpoint) for peer, entry in book.items() if peer != rank}
        if allowance is not None:
            for peer in self.peers.values():
                peer.out.estimate.most = allowance.rate / len(self.peers)
        self.failure: BaseException | None = None
        self.turned = now()
        self.refused = self.stale = self.repeated = 0
        self.suspects: dict[int, str] = {}
        """Peers that break the protocol, and how: nothing more of theirs is heard in this view."""
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waking = threading.Lock()
        self.tasks = TaskTable(rank)
        self.exchange = MessageExchange(self.chunk_sender, self.peers, self.call, self._suspect)
        self._ticked = 0.0
        self._ending = False

    @property
    def generation(self) -> int:
        return self.chunk_sender.generation

    def call(self, command: Callable[[], None]) -> None:
        """From any thread: do this soon."""
        self._commands.append(command)
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """After the thread's end, by its owner: what others `call` is not done any more."""
        with self._waking:  # a handler may end later, and the number may be another file's by then
            os.close(self._wake)
            self._wake = -1

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.endpoint.socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        if self.endpoint.guard is not None:
            poller.register(self.endpoint.guard, zmq.POLLIN)
        try:
            while not self._ending:
                ready = dict(poller.poll(int(1000 * self._pause())))
                self._turn(ready)
        except BaseException as error:  # noqa: BLE001  (raised in the waiting threads)
            self.failure = error
            self.tasks.abort(ShoalError(f"worker {self.rank}: the communication thread failed: {error!r}"))
        finally:
            why = f"failed: {self.failure!r}" if self.failure is not None else "has ended"
            self.exchange.abort(ShoalError(f"worker {self.rank}: the communication thread {why}"))
            self.endpoint.close(linger_ms=1000 if self.failure is None else 0)

    def _pause(self) -> float:
        pause = self._tick_seconds
        if self.chunk_sender.ack_seconds < pause and any(peer.unsaid for peer in self.peers.values()):
            pause = self.chunk_sender.ack_seconds
        allowance = self.chunk_sender.allowance
        if allowance is not None and any(peer.has_waiting for peer in self.peers.values()):
            pause = min(pause, max(SHORTEST, allowance.wait(now())))
        return pause

    @property
    def _tick_seconds(self) -> float:
        members = (self.peers.get(rank) for rank in self.view.others)  # the view is older than the book for a moment
        return TICK if all(peer is None or peer.up for peer in members) else SHORT_TICK

    def _turn(self, ready: dict[object, int]) -> None:
        if self._wake in ready:
            os.eventfd_read(self._wake)
        away = now() - self.turned
        if away > ABSENT:
            for peer in self.peers.values():
                peer.heard = peer.heard if peer.heard is None else peer.heard + away
        while self._commands:
            self._commands.popleft()()
        if self._ending:
            return
        if self.endpoint.guard in ready:
            self.endpoint.let_in(self.book)
        if self.endpoint.socket in ready:
            self._hear_all()
        self.chunk_sender.spend(self.peers.values())
        self.turned = now()
        for peer in self.peers.values():
            self.chunk_sender.acknowledge(peer, self.turned)
        if self.turned - self._ticked >= self._tick_seconds:
            self._ticked = self.turned
            self._tick()

    # What the training thread commands

    def add(self, task: CollectiveTask) -> None:
        """Begin a task."""
        view = self.view if task.among is None else MeshView(task.among, self.rank)
        task.senders = view.others
        self.tasks.add(task, lambda: task.begin(view, self._sender(task)))

    def leave(self, generation: int, error: ShoalError) -> None:
        """A view of `generation` is being made: fail what is under way in older ones."""
        if self.generation < generation:
            self.tasks.abort(error)

    def enrol(self, book: Book) -> None:
        """These are the peers now; links to those that stay the same stay as they are."""
        for rank in [rank for rank in self.peers if self.book[rank] != book.get(rank)]:
            peer = self.peers.pop(rank)
            self.exchange.drop(peer)
            peer.close()
            self.suspects.pop(rank, None)
            for connection in peer.connections:
                self.endpoint.cut(connection)
        self.book = dict(book)
        for rank, entry in book.items():
            if rank != self.rank and rank not in self.peers:
                self.peers[rank] = LinkPeer.reach(rank, entry, self.endpoint)
        self.endpoint.let_in(self.book)  # who knocked before it was in the book

    def reform(self, generation: int, ranks: Sequence[int]) -> None:
        """Enter another view on the same sockets: numbers restart, and messages of older generations are dropped."""
        self.tasks.abort(PeerLost(f"worker {self.rank}: the view of generation {self.generation} has ended"))
        self.chunk_sender.generation, self.view = generation, MeshView(ranks, self.rank)
        self.tasks.begin_anew()
        self.suspects.clear()
        for peer in self.peers.values():
            peer.refused = 0
            peer.out.reset()
            peer.into.reset()
        for peer in (self.peers[rank] for rank in self.view.others):
            peer.awaited = now()
            # Tells whoever was first that its chunks may leave. It must not ask for them again: a chunk of ours may
            # overtake this word on the other connection, and a whole window would be on the link twice.
            self.chunk_sender.ack(peer)

    def hurry(self) -> None:
        """Acknowledge at once, because the run is ending and peers may wait for it."""
        self.chunk_sender.ack_seconds = 0.0

    def end(self, reason: str, lost: int) -> None:
        """Last words, and the end of the thread."""
        for peer in self.peers.values():
            peer.look(now())  # it may have been reached a moment ago
            if peer.bye is not None:  # nobody is there to hear it, and closing would wait
                peer.close()
            elif peer.hears:
                self.chunk_sender.ack(peer)
                self.chunk_sender.goodbye(peer, reason, lost)
        self._ending = True

    @property
    def flushed(self) -> bool:
        """Whether everything has arrived that still has somebody to arrive at."""
        members = (self.peers[rank] for rank in self.view.others)
        return not self._commands and all(p.idle or p.bye is not None or p.gone(self.turned) for p in members)

    # Hearing

    def _hear_all(self) -> None:
        socket = self.endpoint.socket
        for _ in range(AT_ONCE):
            try:
                parts = [socket.recv(zmq.NOBLOCK, copy=False)]
                while parts[-1].more:  # ZeroMQ delivers all parts or none
                    parts.append(socket.recv(zmq.NOBLOCK, copy=False))
            except zmq.Again:
                return
            self._hear_one(parts)
            if not is_readable(socket):
                return

    def _hear_one(self, parts: list[zmq.Frame]) -> None:
        """Whatever goes wrong by a message is its sender's doing: it is suspected, and all others are heard on."""
        peer = self._sender_of(parts[0])
        if peer is None and self.endpoint.guard is not None:  # its key was good once
            self.refused += 1
            self.endpoint.cut(AcceptedConnection.of(parts[0]))
        elif peer is None or peer.rank not in self.suspects:
            try:
                self._hear(parts, peer)
            except FrameRefused as error:
                self.refused += 1
                self._count_refused(peer, str(error))
            except Exception as error:  # noqa: BLE001  (the sender is suspected, and may be evicted)
                self._suspect(peer, f"a message of {peer} cannot be handled: {error!r}")

    def _sender_of(self, frame: zmq.Frame) -> LinkPeer | None:
        """The sender of a message by the key of its connection; None without keys, or if no member has that key now."""
        if self.endpoint.guard is None:
            return None
        name, connection = frame.get("User-Id"), AcceptedConnection.of(frame)
        if self.endpoint.unfinished is not None:
            self.endpoint.unfinished.heard(connection.descriptor)
        for rank, peer in self.peers.items():
            if name == (peer.entry.member or str(rank)):
                peer.connections.add(connection)
                return peer
        return None

    def _end_unfinished(self) -> None:
        """Close connections that fill this worker's memory with messages that do not end."""
        if self.endpoint.unfinished is None:
            return
        for fd, (address, _) in self.endpoint.unfinished.look(now(), drained=not is_readable(self.endpoint.socket)):
            for peer in self.peers.values():
                if AcceptedConnection(fd, address) in peer.connections:
                    self._suspect(peer, f"{peer} sends a message that does not end")

    def _count_refused(self, peer: LinkPeer | None, why: str) -> None:
        if peer is not None:
            peer.refused += 1
            if peer.refused >= MOST_REFUSED:
                self._suspect(peer, f"{peer.refused} messages of {peer} were refused; the last: {why}")

    def _suspect(self, peer: LinkPeer | None, why: str) -> None:
        if peer is None:  # no keys, no strangers: one host's own workers
            raise ShoalError(why)
        self.suspects.setdefault(peer.rank, why)
        self.exchange.lose(peer, why)

    def _hear(self, parts: list[zmq.Frame], known: LinkPeer | None) -> None:
        message = decode(parts[0].buffer)
        peer = self.peers.get(message.sender)
        if (
            peer is None
            or message.run != self.run_id
            or len(parts) != 1 + isinstance(message, ChunkHeader | MessageChunk)
        ):
            raise FrameRefused(f"a message of run {message.run!r} from {message.sender}, in {len(parts)} parts")
        if known is not None and known is not peer:
            raise FrameRefused(f"a message that says it is from worker {message.sender}, under another's key")
        peer.heard, peer.step = now(), message.step
        entered, peer.generation = message.generation > peer.generation, max(peer.generation, message.generation)
        if isinstance(message, LinkHeartbeat):
            peer.state = message.state
            self.chunk_sender.echo(peer, message.stamp)
        elif isinstance(message, LinkClosed):
            peer.bye = message
        elif isinstance(message, MessageChunk):
            self.exchange.hear(peer, message, parts[1])
        elif isinstance(message, MessageAck):
            self.exchange.hear_ack(peer, message)
        elif message.generation != self.generation:
            self.stale += 1
        elif isinstance(message, ChunkAck):
            self._acked(peer, message.expected, message.stamp, message.held, message.again)
        else:
            self._take(peer, message, parts[1])
            if message.expected:
                self._acked(peer, message.expected, message.echo, message.held)
        if entered:
            self.chunk_sender.pump(peer)

    def _take(self, peer: LinkPeer, chunk: ChunkHeader, frame: zmq.Frame) -> None:
        if chunk.seq < peer.into.expected:
            self.repeated += 1
            peer.into.unsaid += ACK_CHUNKS  # its sender does not know
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
            return  # unacknowledged: it will come again
        peer.into.take(chunk, peer.heard or now())
        peer.largest = max(peer.largest, payload.size)
        self.tasks.give(peer.rank, chunk, payload)

    def _sender(self, task: CollectiveTask) -> Send:
        return lambda peer, phase, index, payload: self.chunk_sender.send(task, self.peers[peer], phase, index, payload)

    def _acked(self, peer: LinkPeer, expected: int, stamp: int, held: int, again: bool = False) -> None:
        moment = now()
        if stamp:
            peer.out.estimate.round_trip(moment - (stamp + held) / 1e9, moment)
        peer.out.acknowledged(expected, moment)
        if again and peer.out.may_repeat(moment):
            self.chunk_sender.repeat(peer)
        self.chunk_sender.pump(peer)

    def _tick(self) -> None:
        self._end_unfinished()
        moment = now()
        for peer in self.peers.values():
            made = peer.look(moment)
            if peer.abused:
                self._suspect(peer, f"{peer} sends where it may only listen")
            if made:
                self.chunk_sender.beat(peer)
                self.chunk_sender.repeat(peer)  # nobody knows what the old connection still delivered
                self.chunk_sender.repeat_messages(peer)
                self.chunk_sender.pump(peer)
            if peer.up and moment - peer.told >= BEAT:
                self.chunk_sender.beat(peer)
            if peer.up and peer.out.overdue(moment):
                self.chunk_sender.transmit(peer, peer.out.flying[0])
            self.exchange.tick(peer, moment)
