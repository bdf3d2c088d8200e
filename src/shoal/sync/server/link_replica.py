"""One of the two processes of a replicated server between hosts: a `ReplicatedHost` behind a mesh's messenger.

    member ── oldest, number, request, arrays ──> primary, port "shard.<channel>"
    primary ── entries ──> backup, port "log"     requests, and what the launcher and the run's own workers say
    backup ── EntryHeld ─> primary
    launcher ── ReplicaPromoted ──> backup ── TakenOverReply ──> all members, which send again what has no answer

Both have keys and addresses of their own, which every worker knows from the beginning: so a takeover needs no word of
a launcher to other machines, and nobody else can claim one. A third process would be known to nobody, so a server whose
primary or backup has ended goes on alone, and the run goes back to its checkpoint if that one is killed too.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.groups.links import SERVER_RANK
from shoal.launch.service_channel import (
    ReplicaAlone,
    ReplicaPartner,
    ReplicaPromoted,
    ReplicaReady,
    ServiceView,
    ServiceWord,
)
from shoal.launch.services import ServiceSeat
from shoal.sync.server.connection import LARGEST_PART, NUMBER, SERVED_PORT, TAKEN_OVER
from shoal.sync.server.link_server import LOOK, LinkShardServer
from shoal.sync.server.messages import DeclareRequest, TakenOverReply, encode
from shoal.sync.server.replica_messages import (
    DeclaredEntry,
    EntryHeld,
    ReplicaHello,
    ReplicaWord,
    StateEntry,
    decode_word,
    encode_word,
)
from shoal.sync.server.replicated_host import ReplicatedHost
from shoal.transport.endpoint import BookEntry
from shoal.transport.message_ports import ReceivedMessage
from shoal.wire.codec import GradientCodec

LOG_PORT = "log"
LOG_CREDIT = 1024
"""Entries that may be under way to a backup."""
BACKUP = 1
"""The start of the only backup there is."""


class LinkReplicaServer(LinkShardServer):
    """Of one start. The host has one lock: ports have threads of their own."""

    def __init__(self, seat: ServiceSeat, codec: GradientCodec | None = None) -> None:
        assert seat.replica is not None
        super().__init__(seat, codec)
        self._term, self._told = 0, set[str]()
        """How often another process has taken over; members that know of it."""
        self._partner = ""
        self._view = ServiceView()
        """The newest that the launcher has said."""
        self._replica = ReplicatedHost(
            self._send, self._ship, seat.replica.backs is None, guard=self._guard, accuse=self._accuse, codec=codec
        )
        self._host = self._replica.host
        self._mesh.messenger.serve(LOG_PORT, self._hear_log, LOG_CREDIT, largest=LARGEST_PART, senders=())

    def _accuse(self, member: str, why: str) -> None:
        if self._replica.is_primary:  # else the other one does
            self._launcher.accuse(member, why)

    def _obey(self, word: ServiceWord) -> None:
        if isinstance(word, ReplicaPartner):
            self._meet(word)
        elif isinstance(word, ReplicaPromoted):
            self._take_over(word.term)
        elif isinstance(word, ReplicaAlone):
            self._part()
        else:
            super()._obey(word)

    def _meet(self, partner: ReplicaPartner) -> None:
        self._partner = partner.name
        rank = SERVER_RANK + int(partner.name.rpartition(" ")[2])
        self._partners = {rank: BookEntry(partner.address, partner.public.encode(), "", partner.name)}
        self._mesh.add_peer(*next(iter(self._partners.items())))
        self._mesh.messenger.admit(LOG_PORT, partner.name)
        if not self._replica.is_primary:
            self._say(ReplicaHello())

    def _part(self) -> None:
        """The other process has ended."""
        with self._lock:
            self._partner = ""
            self._replica.go_alone()
        for rank in self._partners:
            self._mesh.remove_peer(rank)
        self._partners = {}

    def _say(self, word: ReplicaWord, parts: Sequence[Any] = ()) -> None:
        if not self._partner:
            return
        # copies: what is pushed must not change before it has left
        data = [np.array(memoryview(part).cast("B"), np.uint8) for part in parts]
        self._mesh.messenger.push(self._partner, LOG_PORT, encode_word(word), data)

    def _ship(self, start: int, word: ReplicaWord, parts: Sequence[Any]) -> None:
        self._say(word, parts)

    def _hear_log(self, message: ReceivedMessage) -> None:
        word = decode_word(message.head)
        with self._lock:
            if self._replica.is_primary:
                self._hear_backup(word)
            # once this process has taken over, entries of the dead primary come too late
            elif not self._term:
                self._follow_log(word, message.arrays)

    def _hear_backup(self, word: ReplicaWord) -> None:
        if isinstance(word, ReplicaHello):
            self._replica.begin_backup(BACKUP)
        elif isinstance(word, EntryHeld):
            self._replica.note_held(BACKUP, word.index)

    def _follow_log(self, word: ReplicaWord, arrays: Sequence[Any]) -> None:
        known = set(self._guard.tensors)
        held = self._replica.take(word, arrays)
        if isinstance(word, DeclaredEntry) and word.request.channel not in known:
            self._open_port(word.request)
        if isinstance(word, StateEntry):
            self._launcher.say(ReplicaReady())  # before anybody is answered because of it
        self._say(held)

    def _take_view(self, view: ServiceView) -> None:
        self._view = view
        if self._replica.is_primary:
            self._replica.follow(view)

    def _follow(self, view: ServiceView) -> None:
        super()._follow(view)
        self._announce()

    def _take_over(self, term: int) -> None:
        """The primary is dead. What it had not sent on nobody had an answer to, and members send it again."""
        with self._lock:
            self._term = term
            self._replica.promote()
        self._part()
        if self._view.generation:
            self._follow(self._view)

    def _announce(self) -> None:
        """Tell members of the takeover; those that come later hear of it when they come."""
        self._told &= set(self._view.members)
        for member in set(self._view.members) - self._told if self._term else ():
            head = NUMBER.pack(TAKEN_OVER) + encode(TakenOverReply(self._term))
            self._mesh.messenger.push(member, SERVED_PORT, head)
            self._told.add(member)

    def _take_declaration(self, member: str, request: DeclareRequest) -> bool:
        return self._replica.is_primary and self._replica.declare(member, request)

    def _hear(self, message: ReceivedMessage) -> None:
        (oldest,), (number,) = NUMBER.unpack_from(message.head), NUMBER.unpack_from(message.head, NUMBER.size)
        with self._lock:
            # a backup takes requests from the log alone
            if self._replica.is_primary and self._fetches(message.sender):
                head = message.head[2 * NUMBER.size :]
                self._replica.request(message.sender, number, oldest, head, message.arrays)

    def _take_overdue(self) -> float:
        if self._replica.is_primary:
            self._replica.take_overdue()
        return self._host.seconds_left(LOOK)
