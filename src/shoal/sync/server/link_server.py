"""A server process between hosts: a `ShardHost` behind a mesh's messenger, under keys.

    launcher ── ServiceView ──> this process          members and their keys; nobody else can connect
    own worker ── DeclareRequest ──> port "declare"   opens a port for the channel, for arrays of these sizes
    member ── number, request, arrays ──> port "shard.<channel>"
    member <── number, reply, arrays ── port "served"

The member of a request is the one whose key its connection has shown. Messages that nobody gave credit for, too large
or malformed, are refused by the links ([docs/links.md]), requests by the host; a remote member that is refused
is named to the launcher, which gives it up. What a member does not fetch is kept up to a limit, then nothing more of
it is heard.
"""

import mmap
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.core.errors import ShoalError
from shoal.groups.links import SERVER_RANK
from shoal.hosts.status_board import BYTES, StatusBoard, WorkerState
from shoal.launch.service_channel import ServiceReady, ServiceView, ServiceWord
from shoal.launch.services import ServiceSeat
from shoal.membership.session import slot_of
from shoal.sync.server.connection import DECLARE_PORT, NUMBER, SERVED_PORT, shard_port
from shoal.sync.server.host import ShardHost
from shoal.sync.server.messages import PARTS, DeclareRequest, ShardReply, decode_declaration, encode
from shoal.sync.server.request_guard import RequestGuard
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.mesh import LinkMesh
from shoal.transport.message_ports import ReceivedMessage
from shoal.transport.message_ticket import MessageTicket
from shoal.wire.codec import GradientCodec

LOOK = 0.25
"""Seconds between looks at members that break the protocol of links."""
LARGEST_DECLARATION = 32 << 10
LARGEST_HEAD = 64 << 10
CREDIT = 8
"""Requests of a member on one channel that may be under way, beside one for each tensor."""
MOST_UNFETCHED = 64 << 20
"""Bytes of replies that a member may leave lying here, beside four times all that its channels hold."""
REPLY_BYTES = 1 << 10
"""What a reply counts at least."""


class ServerStatusBoard(StatusBoard):
    """What a server shows its peers of itself: it is no worker and has no row."""

    def step(self, rank: int) -> int:
        return 0

    def state(self, rank: int) -> int:
        return WorkerState.absent


class LinkShardServer:
    """Of one process. The host has one lock: ports have threads of their own."""

    def __init__(self, seat: ServiceSeat, codec: GradientCodec | None = None) -> None:
        assert seat.channel is not None
        self._launcher, self._seat = seat.channel, seat
        endpoint = LinkEndpoint(seat.address, seat.keys)
        board = ServerStatusBoard(mmap.mmap(-1, BYTES))
        self._mesh = LinkMesh(seat.run, {}, SERVER_RANK + seat.number, endpoint, board)
        self._mesh.loop.exchange.silence = None  # the launcher says who is lost
        self._guard = RequestGuard()
        self._partners: dict[int, BookEntry] = {}
        """Peers that are no members, by rank."""
        self._host = ShardHost(self._send, self._guard, self._launcher.accuse, codec)
        self._lock = threading.RLock()
        self._unfetched: dict[str, deque[tuple[MessageTicket, int]]] = defaultdict(deque)
        self._accused: set[str] = set()
        self._mesh.messenger.serve(DECLARE_PORT, self._declare, CREDIT, largest=LARGEST_DECLARATION, senders=())
        self._launcher.say(ServiceReady(endpoint.address))

    def serve(self) -> None:
        """Follow the members until the launcher ends this process, or is gone. ShoalError: the links have failed."""
        while not self._launcher.over:
            with self._lock:
                left = self._take_overdue()
            # without the lock, so that ports are served while this thread waits
            word = self._launcher.hear(left)
            if word is not None:
                self._obey(word)
            self._look_at_suspects()
            if self._mesh.loop.failure is not None:
                raise ShoalError(f"the communication thread failed: {self._mesh.loop.failure!r}")

    def _take_overdue(self) -> float:
        """Return how long nothing but requests has to be looked after."""
        self._host.take_overdue()
        return self._host.seconds_left(LOOK)

    def _obey(self, word: ServiceWord) -> None:
        """Do what the launcher says."""
        if isinstance(word, ServiceView):
            self._follow(word)

    def _follow(self, view: ServiceView) -> None:
        facts = zip(view.members, view.infos, strict=True)
        book = {slot_of(m): BookEntry(info.address, info.public.encode(), info.host, m) for m, info in facts}
        book |= self._partners
        with self._lock:
            self._take_view(view)
            # lost members fetch nothing any more, so replies to them are forgotten
            self._unfetched = defaultdict(deque, {m: q for m, q in self._unfetched.items() if m in view.members})
        self._mesh.set_peers(book)
        for member in view.own:
            self._mesh.messenger.admit(DECLARE_PORT, member)

    def _take_view(self, view: ServiceView) -> None:
        self._host.follow(view)

    def _look_at_suspects(self) -> None:
        for rank, why in list(self._mesh.loop.suspects.items()):
            member = self._mesh.loop.book[rank].member
            # once for each member: the launcher decides what becomes of it
            if member not in self._accused:
                self._accused.add(member)
                self._launcher.accuse(member, why)

    def _declare(self, message: ReceivedMessage) -> None:
        request = decode_declaration(message.head, message.sender)
        with self._lock:
            is_new = self._take_declaration(message.sender, request)
        if is_new:
            self._open_port(request)

    def _take_declaration(self, member: str, request: DeclareRequest) -> bool:
        return self._host.declare(member, request)

    def _open_port(self, request: DeclareRequest) -> None:
        # these come in one request with the values, so a message holds both
        beside = sum(tensor.size for tensor in request.tensors if tensor.dtype == PARTS)
        largest = max((tensor.size for tensor in request.tensors), default=0) + beside + LARGEST_HEAD
        credit = CREDIT + len(request.tensors)
        self._mesh.messenger.serve(shard_port(request.channel), self._hear, credit, largest=largest)

    def _hear(self, message: ReceivedMessage) -> None:
        (number,) = NUMBER.unpack_from(message.head)
        with self._lock:
            if self._fetches(message.sender):
                self._host.handle(message.sender, number, message.head[NUMBER.size :], message.arrays)

    def _fetches(self, member: str) -> bool:
        """Whether a member takes the replies to what it has asked."""
        replies = self._unfetched[member]
        while replies and replies[0][0].done.is_set():
            replies.popleft()
        held = sum(tensor.size for tensors in self._guard.tensors.values() for tensor in tensors)
        if sum(size for _, size in replies) <= MOST_UNFETCHED + 4 * held:
            return True
        if member not in self._accused:
            self._accused.add(member)
            self._launcher.accuse(member, f"{member} asks the servers for more and more, and takes nothing of it")
        return False

    def _send(self, member: str, number: int, reply: ShardReply, arrays: Sequence[Any]) -> None:
        # not copied: without `shares` a host hands out arrays that nothing writes to again
        data = [np.frombuffer(array, np.uint8) for array in arrays]
        ticket = self._mesh.messenger.push(member, SERVED_PORT, NUMBER.pack(number) + encode(reply), data)
        self._unfetched[member].append((ticket, REPLY_BYTES + sum(each.nbytes for each in data)))
