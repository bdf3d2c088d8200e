"""A group whose workers share one host's memory.

Arena:  board | flags of the mailboxes | mailbox of slot 0 | … | mailbox of the last slot | regions of the exchange …

A round of post:  write own mailbox -> posted[me] = n -> wait for all posted -> read -> taken[me] = n
The next round first waits for all taken, so no mailbox is overwritten before all have read it. If members may change,
an operation ends with one more flag: held[me] = n, once this worker holds the result; it is complete when all do.
Numbers restart with every view, above all that were used before.
"""

import struct
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from torch import Tensor

from shoal.core.errors import UsageError
from shoal.groups.base import LARGEST_WORD, Check, WorkerGroup, as_bytes, deadline_seconds
from shoal.groups.flag_waiter import FlagWaiter
from shoal.groups.host_workers import CopyHost, first_number
from shoal.hosts import status_board
from shoal.hosts.arena import ArenaRegions, SharedArena, pages
from shoal.hosts.fences import full_fence
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.listener import ListenerStage, MembershipListener, OperationTransport
from shoal.membership.session import FixedSession, MembershipSession, slot_of
from shoal.membership.view import MembershipView
from shoal.transport.messenger import Messenger
from shoal.transport.ring_loop import RingLoop
from shoal.transport.rings import HostRings

# Bytes that a worker passes on in a round; longer data take several rounds.
MAILBOX = 1 << 20
_LENGTH = struct.Struct("<q")


class SharedGroup(WorkerGroup, MembershipListener, OperationTransport):
    """Workers of one host with a common arena, which has a slot for each."""

    store: object = None
    """torchrun's store, if the workers found each other through it. Worker 0 may serve it, so it lives with the
    group."""

    def __init__(self, arena: SharedArena, slot: int, slots: int, session: MembershipSession | None = None) -> None:
        if slots > status_board.MOST_WORKERS:
            raise UsageError(f"{slots} workers on one host; at most {status_board.MOST_WORKERS} are possible")
        self.arena, self.slot, self.slots, self.seconds = arena, slot, slots, deadline_seconds()
        self.places = range(slots)
        self._loop: RingLoop | None = None
        """Of messages; None until the messenger is first used."""
        self.session = session or FixedSession(slot, slots)
        self.board = status_board.StatusBoard(arena.map(0, status_board.BYTES))
        self.board.enter(slot)
        self.patience = FlagWaiter(self.board, slot, self.seconds, self.session)
        # Whole pages, because what follows is mapped at page borders.
        flags_bytes = pages(4 * 8 * slots)
        memory = np.frombuffer(arena.map(status_board.BYTES, flags_bytes + slots * MAILBOX), np.uint8)
        # A row for each kind of flag; each worker writes only the column of its slot.
        self._posted, self._taken, self._held, self._left = memory[: 4 * 8 * slots].view(np.int64).reshape(4, slots)
        self._boxes = [memory[flags_bytes + r * MAILBOX :][:MAILBOX] for r in range(slots)]
        self._regions = ArenaRegions(arena, status_board.BYTES + flags_bytes + slots * MAILBOX)
        self.region = self._regions.take
        """Map more shared memory; all workers must ask for the same sizes in the same order."""
        self.session.listeners.add(self, ListenerStage.group)
        if isinstance(self.session, ElasticSession):
            self.session.attach(self)
        if self.session.member in self.session.view:
            self.on_view_change(self.session.view)
        else:  # a newcomer: no member waits for it before it asks to join
            self.rank, self.size, self.members = slot, slots, [slot]

    def on_view_change(self, view: MembershipView, newcomers: Sequence[str] = ()) -> None:
        """Enter a view, with numbers above all that were used before."""
        self.rank, self.size = view.rank(self.session.member), len(view)
        self.members = [slot_of(member) for member in view.members]
        everybody = self.members == list(range(self.slots))
        self.patience.wait_for(None if everybody else self.members)
        self._round = self.base
        if self._loop is not None:
            self._loop.set_peers(self._names())
        # never downwards: a member that is still in the last view may be waiting for the old number
        for row in (self._taken, self._posted, self._held):
            self.patience.publish(row, max(int(row[self.slot]), self._round))

    def leave_view(self, generation: int) -> None:
        """Make the departure visible before this worker checks whether the operation could be completed."""
        # Then the fence, then `holds` is asked: of two workers, one at least sees what the other wrote.
        self._left[self.slot] = generation
        full_fence()

    def all_stay(self) -> bool:
        """Return whether no member has left. Ask it after seeing all parts: a member that left earlier may not have."""
        full_fence()
        return bool(self._left[self.members].max() <= self.session.view.generation)

    @property
    def copy_host(self) -> CopyHost:
        return self

    def datagram_hosts(self) -> dict[str, str]:
        return dict.fromkeys(self.session.view.members, "127.0.0.1")

    def hosts_of_members(self) -> dict[str, str]:
        return dict.fromkeys(self.session.view.members, "here")

    @cached_property
    def messenger(self) -> Messenger:
        """Through memory; its thread and its place in the arena are there from now on."""
        names = self._names()
        self._loop = RingLoop(HostRings(self.arena, self.slots), self.slot, names[self.slot])
        self._loop.set_peers(names)
        self._loop.start()
        return Messenger(self._loop)

    def _names(self) -> dict[int, str]:
        """By which messages know the members: ids, or ranks where members do not change."""
        elastic, view = self.session.elastic, self.session.view
        found = {slot_of(member): member if elastic else str(slot_of(member)) for member in view.members}
        return found | {self.slot: self.session.member if elastic else str(self.slot)}

    @property
    def base(self) -> int:
        """Return the number from which flags count in this view."""
        return first_number(self.session.view)

    def begin_plan(self, number: int) -> None:
        self._regions.begin_plan(number)

    def free_old_plans(self) -> None:
        self._regions.free_old()

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return self.session.operate(lambda: self._gather(data), self._confirm)

    def gather_inside(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        found = self._gather(data)
        self._confirm()  # no worker completes before all have read: the next view may overwrite the mailboxes
        return found

    def broadcast(self, tensors: Sequence[Tensor], givers: Sequence[str] = ()) -> None:
        self.session.operate(lambda: self._broadcast(tensors, self.giver(givers)), self._confirm)

    def _confirm(self) -> None:
        if self.session.elastic:
            self.patience.publish(self._held, self._round)
            self.patience.until(self._held, self._round)

    def _gather(self, data: bytes) -> list[bytes]:
        parts: list[bytearray] = [bytearray() for _ in self.members]
        total = [0] * self.size
        sent, room = 0, MAILBOX - _LENGTH.size
        while True:
            self._begin()
            chunk = np.frombuffer(data[sent : sent + room], np.uint8)
            sent += len(chunk)
            box = self._boxes[self.slot]
            # the whole length in every round: the longest decides, on all workers alike, how many rounds there are
            box[: _LENGTH.size] = np.frombuffer(_LENGTH.pack(len(data)), np.uint8)
            box[_LENGTH.size : _LENGTH.size + len(chunk)] = chunk
            self._meet()
            for rank, slot in enumerate(self.members):
                peer = self._boxes[slot]
                (total[rank],) = _LENGTH.unpack(peer[: _LENGTH.size].tobytes())
                take = min(room, total[rank] - len(parts[rank]))
                parts[rank] += peer[_LENGTH.size : _LENGTH.size + take].tobytes()
            self._end()
            if all(len(part) == length for part, length in zip(parts, total, strict=True)):
                return [bytes(part) for part in parts]

    def _broadcast(self, tensors: Sequence[Tensor], root: int) -> None:
        giver = self._boxes[self.members[root]]
        for tensor in tensors:
            staged = tensor.detach().cpu().contiguous()
            raw = as_bytes(staged).numpy()
            for start in range(0, len(raw), MAILBOX):
                piece = raw[start : start + MAILBOX]
                self._begin()
                if self.rank == root:
                    giver[: len(piece)] = piece
                self._meet()
                if self.rank != root:
                    piece[:] = giver[: len(piece)]
                self._end()
            if self.rank != root and staged.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(staged)

    def _begin(self) -> None:
        # All have read the last round's mailboxes, so they may be overwritten.
        self.patience.until(self._taken, self._round)
        self._round += 1

    def _meet(self) -> None:
        self.patience.publish(self._posted, self._round)
        self.patience.until(self._posted, self._round)

    def _end(self) -> None:
        self.patience.publish(self._taken, self._round)

    def close(self) -> None:
        if self._loop is not None:
            self.messenger.close()
            self._loop.close()
        self.arena.close()
