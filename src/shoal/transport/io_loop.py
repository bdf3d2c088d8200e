"""The communication thread: it owns the sockets, so that gradients travel while the training thread computes.

Each turn runs commands of other threads, receives frames (`frame_receiver`), sends what windows and the rate limit
allow (`sender`), and now and then checks connections and deadlines.
"""

import os
import threading
from collections.abc import Callable, Sequence

import zmq

from shoal.core.clock import now
from shoal.core.errors import PeerLost, ShoalError
from shoal.hosts.status_board import StatusBoard
from shoal.transport.endpoint import Book, LinkEndpoint
from shoal.transport.frame_receiver import FrameReceiver
from shoal.transport.job_priority import POLL, JobPriority
from shoal.transport.loop_commands import LoopCommands
from shoal.transport.message_exchange import MessageExchange
from shoal.transport.peer import LinkPeer
from shoal.transport.rate_limit import SHORTEST, RateLimit
from shoal.transport.sender import BEAT, ChunkSender
from shoal.transport.tasks import CollectiveTask, MeshView, Send, TaskTable

TICK, SHORT_TICK = 0.1, 0.005
"""Seconds between two checks of the connections; the shorter while a member of the view is not connected yet."""
ABSENT = 1.0
"""If this thread did not run for so many seconds (a stopped process, a starved machine), peers were not silent then."""


class IoLoop(threading.Thread):
    """Everything but `call`, `call_at_once` and `close` runs in the communication thread."""

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
                # The links share the limit, so no single one may believe, and open its window for, all of it.
                peer.out.estimate.most = allowance.rate / len(self.peers)
        self.failure: BaseException | None = None
        self.turned = now()
        self.suspects: dict[int, str] = {}
        """Peers that broke the protocol, and how; their frames are ignored for the rest of the view."""
        self._commands = LoopCommands(self._wake_up)
        # An eventfd wakes the poll for one system call, and any number of writes before a turn count as one.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Serialises writers of `_wake` with `close`, which runs in the training thread after this one has ended.
        self._waking = threading.Lock()
        self.tasks = TaskTable(rank)
        self.exchange = MessageExchange(self.chunk_sender, self.peers, self.call_at_once, self._suspect)
        self.receiver = FrameReceiver(
            run, endpoint, self.peers, self.tasks, self.chunk_sender, self.exchange, self.suspects
        )
        self._ticked = 0.0
        self._ending = False

    @property
    def generation(self) -> int:
        return self.chunk_sender.generation

    def call(self, command: Callable[[], None]) -> None:
        """Run a command soon in the communication thread; any thread may call this."""
        self._commands.post(command)

    def call_at_once(self, command: Callable[[], None]) -> None:
        """The same: sockets of libzmq stay in one thread."""
        self.call(command)

    def _wake_up(self) -> None:
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Free the descriptor after the thread's end; later commands are dropped."""
        with self._waking:  # a handler that ends later must not write to a descriptor that was reused
            os.close(self._wake)
            self._wake = -1

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.endpoint.socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        if self.endpoint.handshakes is not None:
            poller.register(self.endpoint.handshakes, zmq.POLLIN)
        try:
            while not self._ending:
                ready = dict(poller.poll(int(1000 * self._pause())))
                with self._commands.turn:
                    self._turn(ready)
        except BaseException as error:  # noqa: BLE001  (raised in the waiting threads)
            self.failure = error
            self.tasks.abort(ShoalError(f"worker {self.rank}: the communication thread failed: {error!r}"))
        finally:
            self._commands.end()
            why = f"failed: {self.failure!r}" if self.failure is not None else "has ended"
            self.exchange.abort(ShoalError(f"worker {self.rank}: the communication thread {why}"))
            # Goodbyes get a second to leave; after a failure nothing in the sockets is worth waiting for.
            self.endpoint.close(linger_ms=1000 if self.failure is None else 0)
            if self.chunk_sender.priority is not None:
                self.chunk_sender.priority.others.close()

    def _pause(self) -> float:
        pause = self._tick_seconds
        if self.chunk_sender.ack_seconds < pause and any(peer.unacknowledged for peer in self.peers.values()):
            pause = self.chunk_sender.ack_seconds
        allowance = self.chunk_sender.allowance
        if allowance is not None and any(peer.has_waiting for peer in self.peers.values()):
            pause = min(pause, max(SHORTEST, allowance.wait(now())))
        if self.chunk_sender.priority is not None and any(peer.out.waiting for peer in self.peers.values()):
            pause = min(pause, POLL)
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
            # Again if a command has posted another, so that it need not wait for the next event.
            self._commands.run_all()
        if self._ending:
            return
        if self.endpoint.handshakes in ready:
            self.endpoint.answer_handshakes(self.book)
        if self.endpoint.socket in ready:
            self.receiver.receive()
        self._look_at_other_runs()
        # After receiving: acknowledgements have just opened the windows.
        self.chunk_sender.spend(self.peers.values())
        self.turned = now()
        for peer in self.peers.values():
            self.chunk_sender.acknowledge(peer, self.turned)
        if self.turned - self._ticked >= self._tick_seconds:
            self._ticked = self.turned
            self._tick()

    def _look_at_other_runs(self) -> None:
        if self.chunk_sender.priority is not None:
            peers = self.peers.values()
            is_waiting = any(peer.out.waiting for peer in peers)
            is_busy = is_waiting or any(peer.out.in_flight for peer in peers)
            self.chunk_sender.priority.look(now(), is_waiting, is_busy)

    # Commands of the training thread

    def set_priority(self, priority: JobPriority) -> None:
        """Send by this priority among the runs of this host from now on."""
        self.chunk_sender.priority = priority

    def add(self, task: CollectiveTask) -> None:
        """Begin a collective task."""
        view = self.view if task.among is None else MeshView(task.among, self.rank)
        task.senders = view.others
        self.tasks.add(task, lambda: task.begin(view, self._sender(task)))

    def leave(self, generation: int, error: ShoalError) -> None:
        """Fail what is under way in views older than `generation`, because a new one is being made."""
        if self.generation < generation:
            self.tasks.abort(error)

    def set_peers(self, book: Book) -> None:
        """Replace the peers; links to those that stay are kept."""
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
        self.endpoint.answer_handshakes(self.book)  # keys that were shown before they were listed are waiting

    def reform(self, generation: int, ranks: Sequence[int]) -> None:
        """Enter another view on the same sockets: numbers restart, and messages of older generations are dropped."""
        self.tasks.abort(PeerLost(f"worker {self.rank}: the view of generation {self.generation} has ended"))
        self.chunk_sender.generation, self.view = generation, MeshView(ranks, self.rank)
        # Numbers of tasks, chunks and refusals belong to a view; messages do not, and go on where they were.
        self.tasks.begin_anew()
        self.suspects.clear()
        for peer in self.peers.values():
            peer.refused = 0
            peer.out.reset()
            peer.into.reset()
        for peer in (self.peers[rank] for rank in self.view.others):
            peer.awaited = now()
            # Tells peers that entered the view earlier that they may send. It must not ask for chunks again: a chunk
            # may overtake it on the other connection, and a whole window would cross the link twice.
            self.chunk_sender.ack(peer)

    def acknowledge_at_once(self) -> None:
        """Acknowledge at once, because the run is ending and peers may wait for it."""
        self.chunk_sender.ack_seconds = 0.0

    def end(self, reason: str, lost: int) -> None:
        """Say goodbye to all peers, and end the thread."""
        for peer in self.peers.values():
            peer.look(now())  # it may have been reached a moment ago
            if peer.bye is not None:  # it has left: a goodbye would wait in the socket and delay closing
                peer.close()
            elif peer.hears:
                self.chunk_sender.ack(peer)
                self.chunk_sender.goodbye(peer, reason, lost)
        self._ending = True

    @property
    def flushed(self) -> bool:
        """Return whether everything has arrived at the peers that are still there."""
        members = (self.peers[rank] for rank in self.view.others)
        return not self._commands and all(p.idle or p.bye is not None or p.gone(self.turned) for p in members)

    def _suspect(self, peer: LinkPeer, why: str) -> None:
        self.receiver.suspect(peer, why)

    def _sender(self, task: CollectiveTask) -> Send:
        return lambda peer, phase, index, payload: self.chunk_sender.send(task, self.peers[peer], phase, index, payload)

    def _tick(self) -> None:
        self.receiver.close_unfinished()
        moment = now()
        for peer in self.peers.values():
            made = peer.look(moment)
            if peer.abused:
                self.receiver.suspect(peer, f"{peer} sends where it may only listen")
            if made:
                self.chunk_sender.beat(peer)
                self.chunk_sender.repeat(peer)  # what the old connection still delivered is unknown
                self.chunk_sender.repeat_messages(peer)
                self.chunk_sender.pump(peer)
            if peer.up and moment - peer.told >= BEAT:
                self.chunk_sender.beat(peer)
            if peer.up and peer.out.overdue(moment):
                self.chunk_sender.transmit(peer, peer.out.in_flight[0])
            self.exchange.tick(peer, moment)
