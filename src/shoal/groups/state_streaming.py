"""Streaming state to a newcomer before it enters the view: which newcomers asked, what has arrived, when to give up.

Members train on meanwhile, so at the newcomer's entry they wait only for what it still lacks.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from shoal.core.clock import now
from shoal.groups.state_transfer import LARGEST
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.protocol import MemberInfo, StreamStateFrom
from shoal.membership.session import slot_of
from shoal.transport.endpoint import BookEntry
from shoal.transport.mesh import LinkMesh
from shoal.transport.messenger import MessageTicket, ReceivedMessage

STREAMING_VARIABLE = "SHOAL_STREAMING"
"""0: newcomers get the whole state when they enter."""
# The coordinator repeats its request while the newcomer waits, so silence means that it is gone or inside.
FORGOTTEN = 30.0
"""Seconds without a message from a newcomer after which its stream ends."""
STALLED = 20.0
"""Seconds without an acknowledgement from a newcomer after which its stream ends."""
INTRODUCED = 3.0
"""Seconds the coordinator has to find a sender."""
TRIES = 3
"""Senders that a newcomer tries in turn, because members may change during a stream."""
PORT, CREDIT = "state-stream", 64
"""Items that may be under way; the newcomer queues them at once, and uses them when it has time."""
LAST = -1
"""Number of an item that ends a stream, in place of those that were cancelled."""


def _entry(member: str, info: MemberInfo) -> BookEntry:
    return BookEntry(info.address, info.public.encode(), info.host, member)


@dataclass
class _StreamAccount:
    given: int = 0
    under_way: deque[MessageTicket] = field(default_factory=deque)
    """The tickets of items that may not have arrived yet."""
    taken: int = 0
    """Bytes acknowledged on the link at the last check."""
    moved: float = field(default_factory=now)
    """When that number last changed."""


class StateStreamServer:
    """The member's side, used in its training thread. All its streams end with the view."""

    def __init__(self, mesh: LinkMesh, session: ElasticSession) -> None:
        self.mesh, self.session = mesh, session
        self._accounts: dict[str, _StreamAccount] = {}

    def asked(self) -> list[str]:
        """Return the newcomers that ask for this view's state; of each slot the last, because earlier ones are lost."""
        asked = self.session.agent.streaming_partners.asked
        # the agent's thread adds to it meanwhile, so this goes through a copy
        for member in [m for m, (_, at) in list(asked.items()) if now() - at > FORGOTTEN]:
            self._forget(member)
        slots = {
            slot_of(m): m
            for m, (request, _) in list(asked.items())
            if request.generation == self.session.view.generation
        }
        return list(slots.values())

    def _forget(self, member: str) -> None:
        self.session.agent.streaming_partners.asked.pop(member, None)
        if self._accounts.pop(member, None) is not None:
            self.mesh.remove_peer(slot_of(member))  # frees what waits for it

    def open(self, member: str) -> None:
        """Begin a stream to a newcomer."""
        request, _ = self.session.agent.streaming_partners.asked[member]
        slot = slot_of(member)
        for before in [other for other in self._accounts if slot_of(other) == slot]:
            self._forget(before)
        self._accounts[member] = _StreamAccount()
        self.mesh.add_peer(slot, _entry(member, request.info))

    def serves(self, member: str) -> bool:
        """Return whether a newcomer has a stream."""
        return member in self._accounts

    def give(self, member: str, data: bytes) -> int:
        """Send the next item without waiting, and return its number."""
        account = self._accounts[member]
        head = f"{self.session.view.generation} {account.given}".encode()
        ticket = self.mesh.messenger.push(member, PORT, head, [np.frombuffer(data, np.uint8)])
        account.under_way.append(ticket)
        account.given += 1
        return account.given - 1

    def withdraw(self, member: str, data: bytes) -> None:
        """End a stream with this item, and cancel what has not left: whatever the newcomer gets next must not wait."""
        account = self._accounts[member]
        for ticket in account.under_way:
            if not ticket.done.is_set():
                self.mesh.messenger.cancel(member, ticket, "withdrawn")
        head = f"{self.session.view.generation} {LAST}".encode()
        account.under_way = deque([self.mesh.messenger.push(member, PORT, head, [np.frombuffer(data, np.uint8)])])
        account.given += 1

    def arrived(self, member: str) -> int:
        """Return how many items have certainly arrived."""
        account = self._accounts[member]
        while account.under_way and account.under_way[0].done.is_set() and account.under_way[0].error is None:
            account.under_way.popleft()
        return account.given - len(account.under_way)

    def broken(self, member: str) -> bool:
        """Return whether an item will not arrive, because the link to the newcomer was dropped."""
        account = self._accounts.get(member)
        return account is None or any(ticket.error is not None for ticket in account.under_way)

    def stalled(self, member: str) -> bool:
        """Return whether a newcomer has taken nothing for too long."""
        account, out = self._accounts[member], self.mesh.link(slot_of(member)).message_out
        taken = out.link.delivered if out is not None else 0
        if not account.under_way or taken != account.taken:
            account.taken, account.moved = taken, now()
        return now() - account.moved > STALLED

    def drop(self, member: str) -> None:
        """End a stream and drop what was not taken. The newcomer stays known, so that no other stream is begun."""
        self.mesh.remove_peer(slot_of(member))

    def close(self) -> None:
        """End all streams, because the view has ended."""
        self._accounts.clear()


class StateStreamClient:
    """The newcomer's side, used in its training thread, except `_receive`."""

    def __init__(self, mesh: LinkMesh, session: ElasticSession) -> None:
        self.mesh, self.session = mesh, session
        self._began = self._moved = now()
        self._offer: StreamStateFrom | None = None
        self._items: dict[tuple[str, int], list[bytes]] = {}
        """By sender and generation, because items may arrive before the coordinator has named their sender."""
        self._taken = self._read = self._tries = 0
        mesh.messenger.serve(PORT, self._receive, CREDIT, largest=LARGEST, threaded=False, senders=())

    def follow(self, offer: StreamStateFrom | None) -> bool:
        """Switch to the sender that the coordinator named last; return whether it is a new one."""
        if offer is None or (self._offer is not None and offer.generation <= self._offer.generation):
            return False
        self._offer, self._tries = offer, self._tries + 1
        for key in [key for key in list(self._items) if key[1] < offer.generation]:
            del self._items[key]
        sender, own = slot_of(offer.member), slot_of(self.session.member)
        info = self.session.agent.info
        self.mesh.set_peers({own: _entry(self.session.member, info), sender: _entry(offer.member, offer.info)})
        self.mesh.messenger.admit(PORT, offer.member)
        self._taken, self._read, self._moved = 0, 0, now()
        return True

    def _receive(self, message: ReceivedMessage) -> None:
        """Keep an item if it is the next one; after a gap the stream cannot complete."""
        # In the communication thread. A head that is no two numbers raises, and the sender is suspected.
        generation, number = map(int, message.head.split())
        (data,) = message.arrays
        if self._offer is not None and generation >= self._offer.generation:
            items = self._items.setdefault((message.sender, generation), [])
            # Dropped otherwise: an item of a stream that was withdrawn and begun again.
            if number in (len(items), LAST):
                items.append(data.tobytes())

    @property
    def _received(self) -> list[bytes]:
        offer = self._offer
        return self._items.get((offer.member, offer.generation), []) if offer is not None else []

    def items(self) -> list[bytes]:
        """Return the items that have come since the last call."""
        new = self._received[self._read :]
        self._read += len(new)
        if self._offer is not None and self._chunks(slot_of(self._offer.member)) != self._taken:
            self._taken, self._moved = self._chunks(slot_of(self._offer.member)), now()
        return new

    @property
    def pending(self) -> int:
        """Return how many items have come that `items` has not returned yet."""
        return len(self._received) - self._read

    def _chunks(self, sender: int) -> int:
        """Return how much has come from the sender, including incomplete items."""
        peer = self.mesh.loop.peers.get(sender)
        return peer.message_in.link.expected if peer is not None and peer.message_in is not None else 0

    @property
    def size(self) -> int:
        """Return how many bytes have come."""
        return sum(map(len, self._received))

    @property
    def hopeless(self) -> str:
        """Return why the stream cannot complete, or ""."""
        if self._offer is None:
            return "no member was found to stream it" if now() - self._began > INTRODUCED else ""
        if self._tries > TRIES:
            return f"members changed {TRIES} times meanwhile"
        waited = now() - self._moved
        return f"{self._offer.member} sent nothing for {waited:.0f} s" if waited > self._offer.patience else ""
