"""Streaming state to a newcomer before it enters the view: which newcomers asked, what has arrived, when to give up.

Members go on training meanwhile, so they wait at the newcomer's entry only for what it still lacks.
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
FORGOTTEN = 30.0
"""Seconds without a message of a newcomer after which nothing more is sent to it."""
STALLED = 20.0
"""Seconds in which nothing of what was sent arrives at a newcomer, after which its stream ends."""
INTRODUCED = 3.0
"""Seconds in which a coordinator finds a member that sends."""
TRIES = 3
"""Senders, one after the other: members may change during a stream."""
PORT, CREDIT = "state-stream", 64
"""Items that may be under way: a newcomer puts them aside at once, and uses them when it has time."""


def _entry(member: str, info: MemberInfo) -> BookEntry:
    return BookEntry(info.address, info.public.encode(), info.host, member)


@dataclass
class _Account:
    given: int = 0
    under_way: deque[MessageTicket] = field(default_factory=deque)
    """Of the items that may not have arrived."""
    taken: int = 0
    """Bytes of the link that had arrived when it was last looked at."""
    moved: float = field(default_factory=now)
    """When that last changed."""


class StateStreamServer:
    """The member's side, used in its training thread. A view that ends takes all its streams with it."""

    def __init__(self, mesh: LinkMesh, session: ElasticSession) -> None:
        self.mesh, self.session = mesh, session
        self._accounts: dict[str, _Account] = {}

    def asked(self) -> list[str]:
        """Newcomers that ask for the state of this view; only the last one of a slot, because those before are lost."""
        asked = self.session.agent.streaming_partners.asked
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
            self.mesh.remove_peer(slot_of(member))  # what waits for it is given back

    def open(self, member: str) -> None:
        """Begin a stream to it."""
        request, _ = self.session.agent.streaming_partners.asked[member]
        slot = slot_of(member)
        for before in [other for other in self._accounts if slot_of(other) == slot]:
            self._forget(before)
        self._accounts[member] = _Account()
        self.mesh.add_peer(slot, _entry(member, request.info))

    def serves(self, member: str) -> bool:
        """Whether it has a stream."""
        return member in self._accounts

    def give(self, member: str, data: bytes) -> int:
        """Send the next item, without waiting; its number."""
        account = self._accounts[member]
        head = f"{self.session.view.generation} {account.given}".encode()
        ticket = self.mesh.messenger.push(member, PORT, head, [np.frombuffer(data, np.uint8)])
        account.under_way.append(ticket)
        account.given += 1
        return account.given - 1

    def arrived(self, member: str) -> int:
        """How many items it has for certain."""
        account = self._accounts[member]
        while account.under_way and account.under_way[0].done.is_set() and account.under_way[0].error is None:
            account.under_way.popleft()
        return account.given - len(account.under_way)

    def stalled(self, member: str) -> bool:
        """Whether it has taken nothing for long of what waits for it."""
        account, out = self._accounts[member], self.mesh.link(slot_of(member)).message_out
        taken = out.link.delivered if out is not None else 0
        if not account.under_way or taken != account.taken:
            account.taken, account.moved = taken, now()
        return now() - account.moved > STALLED

    def drop(self, member: str) -> None:
        """Send it nothing more, and forget what it has not taken; it stays known, so that it is not begun again."""
        self.mesh.remove_peer(slot_of(member))

    def close(self) -> None:
        """The view has ended."""
        self._accounts.clear()


class StateStreamClient:
    """The newcomer's side, used in its training thread, except `_receive`."""

    def __init__(self, mesh: LinkMesh, session: ElasticSession) -> None:
        self.mesh, self.session = mesh, session
        self._began = self._moved = now()
        self._offer: StreamStateFrom | None = None
        self._items: dict[tuple[str, int], list[bytes]] = {}
        """By sender and generation: items may arrive before the coordinator names their sender again."""
        self._taken = self._read = self._tries = 0
        mesh.messenger.serve(PORT, self._receive, CREDIT, largest=LARGEST, threaded=False, senders=())

    def follow(self, offer: StreamStateFrom | None) -> bool:
        """Switch to the sender that the coordinator named last; whether it is another than before."""
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
        generation, number = map(int, message.head.split())
        (data,) = message.arrays
        if self._offer is not None and generation >= self._offer.generation:
            items = self._items.setdefault((message.sender, generation), [])
            if number == len(items):
                items.append(data.tobytes())

    @property
    def _received(self) -> list[bytes]:
        offer = self._offer
        return self._items.get((offer.member, offer.generation), []) if offer is not None else []

    def items(self) -> list[bytes]:
        """What has come since the last time."""
        new = self._received[self._read :]
        self._read += len(new)
        if self._offer is not None and self._chunks(slot_of(self._offer.member)) != self._taken:
            self._taken, self._moved = self._chunks(slot_of(self._offer.member)), now()
        return new

    def _chunks(self, sender: int) -> int:
        """How much has come from it: of an item, too, that is not whole yet."""
        peer = self.mesh.loop.peers.get(sender)
        return peer.message_in.link.expected if peer is not None and peer.message_in is not None else 0

    @property
    def size(self) -> int:
        """Bytes that have come."""
        return sum(map(len, self._received))

    @property
    def hopeless(self) -> str:
        """Why the stream cannot complete; empty while it still may."""
        if self._offer is None:
            return "no member was found to stream it" if now() - self._began > INTRODUCED else ""
        if self._tries > TRIES:
            return f"members changed {TRIES} times meanwhile"
        waited = now() - self._moved
        return f"{self._offer.member} sent nothing for {waited:.0f} s" if waited > self._offer.patience else ""
