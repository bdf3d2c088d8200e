"""A host of shards in two processes: the primary answers members, the backup does all that it does.

    member ── request ──> primary ── RequestEntry ──> backup    both handle it, in the order of the log
                             │  <──── EntryHeld ────────┘
    member <── reply ────────┘                                  not before the backup has what the reply came from

A host is a state machine, so the same entries in the same order give the same bits. What a member was
told is in both processes: if the primary dies, the backup answers in its place, and members send again what had no
answer. A request that both have handled is answered from what was kept and not handled again. Without a backup nobody
is answered until a new one has the state, or until the launcher says that none will come.

Primary and backup: Budhiraja et al., "The Primary-Backup Approach", 1993. Requests by number with the oldest that has
no answer, so that kept replies can be dropped: Lee et al., "Implementing Linearizability at Large Scale and Low
Latency", SOSP 2015 (RIFL). Do not use it where a checkpoint is near enough: each request travels and is computed twice.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.errors import PayloadError
from shoal.launch.service_channel import ServiceView
from shoal.sync.server.host import Send, ShardHost
from shoal.sync.server.host_snapshot import HostSnapshot, SnapshotDecoder, SnapshotEncoder
from shoal.sync.server.messages import (
    DeclareRequest,
    OpenRequest,
    RoundRequest,
    ShardReply,
    SumRequest,
    WaitReply,
    WhoRequest,
    decode_reply,
    decode_request,
    encode,
)
from shoal.sync.server.replica_messages import (
    DeclaredEntry,
    EntryHeld,
    ExpiredEntry,
    MembersEntry,
    ReplicaWord,
    RequestEntry,
    StateEntry,
)
from shoal.wire.codec import GradientCodec

Ship = Callable[[int, ReplicaWord, Sequence[Any]], None]
"""To the backup of this start: a word, and the parts behind it."""


@dataclass
class KeptReply:
    """A reply that its member may ask for again."""

    head: bytes
    arrays: list[npt.NDArray[Any]]


@dataclass
class RequestHistory:
    """Of one member: which of its requests were handled, from the first that it has no answer to."""

    oldest: int = 0
    handled: set[int] = field(default_factory=set)
    replies: dict[int, KeptReply] = field(default_factory=dict)

    def knows(self, number: int) -> bool:
        return number < self.oldest or number in self.handled

    def note(self, number: int, oldest: int) -> None:
        """A request comes, and its member has the replies to all before `oldest`."""
        self.handled.add(number)
        # the member has the replies before that one, so it never asks for them again
        if oldest > self.oldest:
            self.oldest = oldest
            self.handled = {each for each in self.handled if each >= oldest}
            self.replies = {each: reply for each, reply in self.replies.items() if each >= oldest}


@dataclass
class ReplicaState:
    """All that a backup begins with."""

    host: HostSnapshot
    histories: dict[str, RequestHistory]
    generation: int


class ReplicatedHost:
    """One of the two processes; used by one thread."""

    def __init__(self, send: Send, ship: Ship, is_primary: bool, **host: Any) -> None:
        """`host`: settings of the `ShardHost`, the same in both processes."""
        self._send, self._ship, self.is_primary = send, ship, is_primary
        self.host = ShardHost(self._answer, **host)
        self._codec: GradientCodec | None = host.get("codec")
        self.index = 0
        """Requests handled."""
        self._held = 0
        """How many of them the backup has."""
        self._backup: int | None = None
        """The start of the process that is the backup."""
        self._is_alone = False
        self._histories: dict[str, RequestHistory] = {}
        self._generation = 0
        """Of the newest view that a request has named."""
        self._outbox: deque[tuple[int, str, int, ShardReply, Sequence[Any]]] = deque()
        """Replies that wait for the backup, with how many requests it must have."""

    # the primary

    def request(self, member: str, number: int, oldest: int, head: bytes, arrays: Sequence[Any]) -> None:
        """A member asks, for the first time or again."""
        history = self._histories.get(member)
        if _only_reads(member, head):
            self.host.handle(member, number, head, arrays)
        elif history is not None and history.knows(number):
            if (kept := history.replies.get(number)) is not None:
                self._queue(member, number, decode_reply(kept.head, "this server"), kept.arrays)
        else:
            if self._backup is not None:
                # before it is handled here, so that both processes compute at the same time
                self._ship(self._backup, RequestEntry(self.index + 1, member, number, oldest), [head, *arrays])
            self._handle(member, number, oldest, head, arrays)
        self._release()

    def take_overdue(self) -> None:
        """Take the steps whose deadline is over: an entry of the log, so that the backup needs no clock."""
        for channel, step in self.host.find_overdue():
            if self._backup is not None:
                self._ship(self._backup, ExpiredEntry(self.index + 1, channel, step), [])
            self._expire(channel, step)
        self._release()

    def follow(self, view: ServiceView) -> None:
        """Between hosts: the launcher names the members. An entry of the log, so that both judge requests alike."""
        if self._backup is not None:
            self._ship(self._backup, MembersEntry(self.index + 1, view), [])
        self._follow(view)
        self._release()

    def declare(self, member: str, request: DeclareRequest) -> bool:
        """Between hosts: a member says what will come on a channel; return whether that is new."""
        if self._backup is not None:
            self._ship(self._backup, DeclaredEntry(self.index + 1, member, request), [])
        self.index += 1
        return self.host.declare(member, request)

    def begin_backup(self, start: int) -> None:
        """A new backup is there: give it the state. The word of one that has ended may come after its successor's."""
        if self._backup is not None and start <= self._backup:
            return
        self._backup = start
        encoder = SnapshotEncoder()
        state = encoder.encode(ReplicaState(self.host.take_snapshot(), self._histories, self._generation))
        self._ship(start, StateEntry(self.index), [state, *encoder.arrays])

    def note_held(self, start: int, index: int) -> None:
        """A backup has handled so many requests."""
        if start == self._backup:
            self._held = max(self._held, index)
            self._release()

    def go_alone(self) -> None:
        """No backup will come any more."""
        self._is_alone = True
        self._release()

    # the backup

    def take(self, word: ReplicaWord, parts: Sequence[Any]) -> EntryHeld:
        """Do as the primary says. PayloadError: it says what no primary does."""
        if isinstance(word, StateEntry) and parts:
            self._restore(word, bytes(parts[0]), parts[1:])
        # entries without a gap: after a missing one the two states would differ unnoticed
        elif isinstance(word, RequestEntry) and parts and word.index == self.index + 1:
            self._handle(word.member, word.number, word.oldest, bytes(parts[0]), parts[1:])
        elif isinstance(word, ExpiredEntry) and word.index == self.index + 1:
            self._expire(word.channel, word.step)
        elif isinstance(word, MembersEntry) and word.index == self.index + 1:
            self._follow(word.view)
        elif isinstance(word, DeclaredEntry) and word.index == self.index + 1:
            self.declare(word.member, word.request)
        else:
            raise PayloadError(f"a server sends its replica {word} after entry {self.index}")
        return EntryHeld(self.index)

    def promote(self) -> None:
        """Answer members from now on; the primary is dead."""
        self.is_primary = True

    # both

    def _handle(self, member: str, number: int, oldest: int, head: bytes, arrays: Sequence[Any]) -> None:
        self.index += 1
        self._histories.setdefault(member, RequestHistory()).note(number, oldest)
        self._forget_lost(member, head)
        self.host.handle(member, number, head, arrays)

    def _follow(self, view: ServiceView) -> None:
        self.index += 1
        self.host.follow(view)

    def _expire(self, channel: int, step: int) -> None:
        self.index += 1
        self.host.expire(channel, step)

    def _forget_lost(self, member: str, head: bytes) -> None:
        """Members that are not in the newest view ask for nothing again."""
        try:
            request = decode_request(head, member)
        except PayloadError:
            return  # the host refuses it
        if isinstance(request, OpenRequest | RoundRequest | SumRequest) and request.generation > self._generation:
            self._generation = request.generation
            here = {member, *request.members}
            self._histories = {name: history for name, history in self._histories.items() if name in here}

    def _answer(self, member: str, number: int, reply: ShardReply, arrays: Sequence[Any]) -> None:
        history = self._histories.get(member)
        # a WaitReply is not kept: the final reply comes under the same number
        if history is not None and number in history.handled and not isinstance(reply, WaitReply):
            history.replies[number] = KeptReply(encode(reply), [np.asarray(array) for array in arrays])
        # a backup only keeps the reply: its member asks again after a takeover
        if self.is_primary:
            self._queue(member, number, reply, arrays)

    def _queue(self, member: str, number: int, reply: ShardReply, arrays: Sequence[Any]) -> None:
        # it may depend on every entry handled so far, so it waits for the newest
        self._outbox.append((self.index, member, number, reply, arrays))

    def _release(self) -> None:
        while self._outbox and (self._is_alone or self._outbox[0][0] <= self._held):
            _, member, number, reply, arrays = self._outbox.popleft()
            self._send(member, number, reply, arrays)

    def _restore(self, word: StateEntry, state: bytes, arrays: Sequence[Any]) -> None:
        decoder = SnapshotDecoder(arrays)
        found: ReplicaState = decoder.decode(state, ReplicaState)
        found.host.shards = decoder.decode_shards(found.host.shards, self._codec)
        self.host.restore(found.host)
        self._histories, self._generation, self.index = found.histories, found.generation, word.index


def _only_reads(member: str, head: bytes) -> bool:
    """Whether a request changes nothing, so that the backup need not see it."""
    try:
        return isinstance(decode_request(head, member), WhoRequest)
    except PayloadError:
        return False
