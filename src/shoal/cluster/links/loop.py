"""The communication thread: owns the sockets, so that gradients travel while the training thread computes.

    training thread ── commands ──>  loop  <──> sockets
                    <── task.done ──

One turn: wait for anything, do what was commanded, hear what came, say what is due. Nothing in it blocks longer than
a tick, and numpy and ZeroMQ let the training thread run while they add and copy.
"""

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec
import zmq

from shoal.cluster.board import Board
from shoal.cluster.links.allowance import SHORTEST, Allowance
from shoal.cluster.links.book import Book
from shoal.cluster.links.door import Door
from shoal.cluster.links.frames import Payload, unpack
from shoal.cluster.links.link import HEAD, Flying
from shoal.cluster.links.messages import LONGEST_REASON, Ack, AnyMessage, Beat, Bye, Chunk, decode, encode
from shoal.cluster.links.peer import Peer
from shoal.cluster.links.refused import Refused
from shoal.cluster.links.task import Send, Task, View
from shoal.core.clock import now
from shoal.core.errors import LayoutError, PeerLost, ShoalError

TICK, SHORT_TICK = 0.05, 0.005
"""Seconds between two looks at the connections; the shorter while a member of the view is not reached yet."""
BEAT = 0.5
"""Seconds after which something is said to a peer, if only that we live."""
ACK_CHUNKS, ACK_SECONDS = 4, 0.02
AT_ONCE = 128
"""Messages that are heard before anything is said."""
ASK_AGAIN = 0.1
ABSENT = 1.0
"""Seconds this thread may have been away (a stopped process, a starved machine) before silence is not the peers'."""
LARGEST_EARLY = 256 << 20
"""Bytes of tasks that were not handed in yet: a peer may be ahead, but not without end."""


class Loop(threading.Thread):
    """Everything in here runs in the communication thread, but `call`."""

    def __init__(
        self, run: str, book: Book, rank: int, door: Door, board: Board, allowance: Allowance | None = None
    ) -> None:
        super().__init__(name="shoal-links", daemon=True)
        self.run_id, self.book, self.rank, self.door, self.board = run, dict(book), rank, door, board
        self.epoch, self.view = 0, View(sorted({*book, rank}), rank)
        self.peers = {peer: Peer.reach(peer, entry, door) for peer, entry in book.items() if peer != rank}
        self.allowance = allowance
        if allowance is not None:
            for peer in self.peers.values():
                peer.out.estimate.most = allowance.rate / len(self.peers)
        self.failure: BaseException | None = None
        self.turned = now()
        self.refused = self.stale = self.repeated = 0
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._tasks: dict[tuple[int, int], Task] = {}
        self._next: Counter[int] = Counter()
        self._early: dict[tuple[int, int], list[tuple[int, Chunk, Payload]]] = {}
        self._early_bytes = 0
        self._ticked = 0.0
        self._ending = False

    def call(self, command: Callable[[], None]) -> None:
        """From any thread: do this soon."""
        self._commands.append(command)
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """After the thread's end, by its owner: nobody may `call` any more."""
        os.close(self._wake)

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self.door.socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        if self.door.guard is not None:
            poller.register(self.door.guard, zmq.POLLIN)
        try:
            while not self._ending:
                ready = dict(poller.poll(int(1000 * self._pause())))
                self._turn(ready)
        except BaseException as error:  # noqa: BLE001  (told to whoever waits)
            self.failure = error
            for task in self._tasks.values():
                task.fail(ShoalError(f"worker {self.rank}: the communication thread failed: {error!r}"))
        finally:
            self.door.close(linger_ms=1000 if self.failure is None else 0)

    def _pause(self) -> float:
        pause = ACK_SECONDS if any(peer.into.unsaid for peer in self.peers.values()) else TICK
        pause = min(pause, self._tick_seconds)
        if self.allowance is not None and any(peer.out.waiting for peer in self.peers.values()):
            pause = min(pause, max(SHORTEST, self.allowance.wait(now())))
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
        self.door.let_in(self.book)
        self._hear_all()
        if self.allowance is not None:
            self._spend()
        self.turned = now()
        self._acknowledge()
        if self.turned - self._ticked >= self._tick_seconds:
            self._ticked = self.turned
            self._tick()

    # What the training thread commands

    def add(self, task: Task) -> None:
        """Begin a task; what peers have sent of it already is waiting."""
        self._tasks[task.key] = task
        self._next[task.channel] = task.number + 1
        view = self.view if task.among is None else View(task.among, self.rank)
        self._do(task, lambda: task.begin(view, self._sender(task)))
        for sender, chunk, payload in self._early.pop(task.key, ()):
            self._early_bytes -= payload.size
            self._give(task, sender, chunk, payload)

    def abort(self, error: ShoalError) -> None:
        """End all tasks; chunks of this epoch that still come change nothing."""
        for task in self._tasks.values():
            task.fail(error)
        self._tasks.clear()
        self._early.clear()
        self._early_bytes = 0

    def leave(self, epoch: int, error: ShoalError) -> None:
        """A view of `epoch` is being made: nothing comes of what is under way in an older one."""
        if self.epoch < epoch:
            self.abort(error)

    def enrol(self, book: Book) -> None:
        """These are the peers now; links to those that stay the same stay as they are."""
        for rank in [rank for rank in self.peers if self.book[rank] != book.get(rank)]:
            self.peers.pop(rank).close()
        self.book = dict(book)
        for rank, entry in book.items():
            if rank != self.rank and rank not in self.peers:
                self.peers[rank] = Peer.reach(rank, entry, self.door)

    def reform(self, epoch: int, ranks: Sequence[int]) -> None:
        """Another view, on the same sockets: numbers begin anew, and nothing of an older epoch is heard."""
        self.abort(PeerLost(f"worker {self.rank}: the view of epoch {self.epoch} has ended"))
        self.epoch, self.view = epoch, View(ranks, self.rank)
        self._next.clear()
        for peer in self.peers.values():
            peer.out.reset()
            peer.into.reset()
        for peer in (self.peers[rank] for rank in self.view.others):
            peer.awaited = now()
            self._ack(peer, again=True)  # whoever was first has sent into the void

    def end(self, reason: str, lost: int) -> None:
        """Last words, and the end of the thread."""
        for peer in self.peers.values():
            if peer.bye is not None:  # nobody is there to hear it, and closing would wait
                peer.close()
            elif peer.up:
                self._ack(peer)
                self._say(peer, Bye(*self._head(), reason[:LONGEST_REASON], lost))
        self._ending = True

    @property
    def flushed(self) -> bool:
        """Whether everything has arrived that still has somebody to arrive at."""
        members = (self.peers[rank] for rank in self.view.others)
        return not self._commands and all(p.out.idle or p.bye is not None or p.gone(self.turned) for p in members)

    # Hearing

    def _hear_all(self) -> None:
        socket = self.door.socket
        for _ in range(AT_ONCE):
            try:
                parts = [socket.recv(zmq.NOBLOCK, copy=False)]
                while parts[-1].more:  # ZeroMQ delivers all parts or none
                    parts.append(socket.recv(zmq.NOBLOCK, copy=False))
            except zmq.Again:
                return
            try:
                self._hear(parts)
            except Refused:
                self.refused += 1

    def _hear(self, parts: list[zmq.Frame]) -> None:
        message = decode(parts[0].buffer)
        peer = self.peers.get(message.sender)
        if peer is None or message.run != self.run_id or len(parts) != 1 + isinstance(message, Chunk):
            raise Refused(f"a message of run {message.run!r} from {message.sender}, in {len(parts)} parts")
        if self.door.guard is not None and parts[0].get("User-Id") != (peer.entry.member or str(message.sender)):
            raise Refused(f"a message that says it is from worker {message.sender}, under another's key")
        peer.heard, peer.step = now(), message.step
        entered, peer.epoch = message.epoch > peer.epoch, max(peer.epoch, message.epoch)
        if isinstance(message, Beat):
            peer.state = message.state
            self._say(peer, Ack(*self._head(), peer.into.expected, message.stamp, 0))
        elif isinstance(message, Bye):
            peer.bye = message
        elif message.epoch != self.epoch:
            self.stale += 1
        elif isinstance(message, Ack):
            self._acked(peer, message)
        else:
            self._take(peer, message, parts[1])
        if entered:
            self._pump(peer)

    def _take(self, peer: Peer, chunk: Chunk, frame: zmq.Frame) -> None:
        if chunk.seq < peer.into.expected:
            self.repeated += 1
            peer.into.unsaid += ACK_CHUNKS  # its sender does not know
            return
        if chunk.seq > peer.into.expected:
            self._ask_again(peer)
            return
        try:
            payload = unpack(chunk, frame)
        except Refused:
            self._ask_again(peer)
            raise
        key = (chunk.channel, chunk.task)
        task = self._tasks.get(key)
        if task is None and chunk.task >= self._next[chunk.channel]:
            if self._early_bytes + payload.size > LARGEST_EARLY:
                return  # unacknowledged: it will come again
            self._early.setdefault(key, []).append((peer.rank, chunk, payload))
            self._early_bytes += payload.size
        peer.into.take(chunk, peer.heard or now())
        peer.largest = max(peer.largest, payload.size)
        if task is not None:
            self._give(task, peer.rank, chunk, payload)

    def _give(self, task: Task, sender: int, chunk: Chunk, payload: Payload) -> None:
        if chunk.kind != task.kind or (task.alike and chunk.total != task.total):
            task.fail(
                LayoutError(
                    f"worker {sender} is in a {chunk.kind} of {chunk.total} bytes where worker {self.rank} is in a "
                    f"{task.kind} of {task.total}; all workers must make the same calls"
                )
            )
        elif not task.done.is_set():
            self._do(task, lambda: task.arrived(sender, chunk, payload))

    def _do(self, task: Task, work: Callable[[], None]) -> None:
        try:
            work()
        except ShoalError as error:
            task.fail(error)
        if task.done.is_set():
            task.ended = now()
            self._tasks.pop(task.key, None)

    # Saying

    def _sender(self, task: Task) -> Send:
        def send(peer: int, phase: int, index: int, payload: Payload) -> None:
            link = self.peers[peer].out
            chunk = Chunk(
                self.run_id,
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
            link.queue(chunk, payload, task.urgency)
            self._pump(self.peers[peer])

        return send

    def _pump(self, peer: Peer) -> None:
        while self._send_next(peer):
            pass

    def _send_next(self, peer: Peer) -> bool:
        """A chunk leaves, if one may. What comes before its receiver is in the view is dropped there, and what waits in
        a socket that is not connected is sent again when it is: both would be twice on the link."""
        there = peer.up and peer.epoch >= self.epoch
        flying = peer.out.next(now()) if there and self._may() else None
        if flying is not None:
            self._transmit(peer, flying)
        return flying is not None

    def _may(self) -> bool:
        return self.allowance is None or self.allowance.wait(now()) <= 0

    def _spend(self) -> None:
        """What has become free goes to the peers in turn."""
        waiting = [peer for peer in self.peers.values() if peer.out.waiting]
        while waiting and self._may():
            waiting = [peer for peer in waiting if self._send_next(peer)]

    def _transmit(self, peer: Peer, flying: Flying) -> None:
        stamp = now()
        flying.sent = stamp
        chunk = msgspec.structs.replace(flying.chunk, step=self._step(), stamp=int(stamp * 1e9))
        peer.way.send(encode(chunk), zmq.SNDMORE)
        peer.way.send(flying.payload.frame, copy=False)
        peer.told = stamp
        self._count(flying.payload.size + HEAD)

    def _say(self, peer: Peer, message: AnyMessage) -> None:
        peer.aside.send(encode(message))
        peer.told = now()
        self._count(HEAD)

    def _count(self, size: int) -> None:
        if self.allowance is not None:
            self.allowance.spent(size, now())

    def _head(self) -> tuple[str, int, int, int, int]:
        return self.run_id, self.epoch, self._step(), self.rank, 0

    def _step(self) -> int:
        return max(0, self.board.step(self.rank))

    def _ack(self, peer: Peer, again: bool = False) -> None:
        into = peer.into
        held = int((now() - into.stamped) * 1e9) if into.stamp else 0
        self._say(peer, Ack(*self._head(), into.expected, into.stamp, held, again))
        into.unsaid = into.stamp = 0

    def _acknowledge(self) -> None:
        for peer in self.peers.values():
            if peer.into.unsaid >= ACK_CHUNKS or (peer.into.unsaid and self.turned - peer.into.since >= ACK_SECONDS):
                self._ack(peer)

    def _acked(self, peer: Peer, ack: Ack) -> None:
        moment = now()
        if ack.stamp:
            peer.out.estimate.round_trip(moment - (ack.stamp + ack.held) / 1e9, moment)
        peer.out.acknowledged(ack.expected, moment)
        if ack.again:
            self._repeat(peer)
        self._pump(peer)

    def _ask_again(self, peer: Peer) -> None:
        moment = now()
        if moment - peer.into.asked > max(ASK_AGAIN, peer.out.estimate.rtt or 0.0):
            peer.into.asked = moment
            self._ack(peer, again=True)

    def _repeat(self, peer: Peer) -> None:
        for flying in peer.out.flying:
            self._transmit(peer, flying)
        peer.again = now()

    def _tick(self) -> None:
        moment = now()
        for peer in self.peers.values():
            if peer.look(moment):
                self._beat(peer)
                self._repeat(peer)  # nobody knows what the old connection still delivered
                self._pump(peer)
            if peer.up and moment - peer.told >= BEAT:
                self._beat(peer)
            if peer.up and peer.out.overdue(moment):
                self._transmit(peer, peer.out.flying[0])

    def _beat(self, peer: Peer) -> None:
        state = self.board.state(self.rank)
        self._say(peer, Beat(*self._head(), int(now() * 1e9), state))
