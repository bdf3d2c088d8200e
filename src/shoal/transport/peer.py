"""A peer as the communication thread sees it: its link in both directions, when it was last heard, how it ended."""

from dataclasses import dataclass, field

import zmq

from shoal.hosts.status_board import WorkerState
from shoal.transport.connection import AcceptedConnection, PeerConnection
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.incoming_messages import IncomingMessages
from shoal.transport.messages import ChunkHeader, LinkClosed
from shoal.transport.outgoing_messages import OutgoingMessages
from shoal.transport.reliable import IncomingLink, OutgoingLink

FIRST_WORD = 15.0
"""Seconds in which a peer that never was heard may come."""
GONE_SECONDS, GONE_REFUSALS = 1.0, 5
"""A closed connection that was refused so often for so long: nobody listens there any more. A slow or frozen peer
does not come to this, for its kernel accepts connections in its stead."""


@dataclass
class LinkPeer:
    """The communication thread writes; others may read single values."""

    rank: int
    entry: BookEntry
    way: "zmq.Socket[bytes]"
    """For chunks."""
    aside: "zmq.Socket[bytes]"
    """For what is short."""
    out: OutgoingLink[ChunkHeader] = field(default_factory=OutgoingLink)
    into: IncomingLink = field(default_factory=IncomingLink)
    message_out: OutgoingMessages | None = None
    """Beside the chunks of collectives; None before the first message."""
    message_in: IncomingMessages | None = None
    collective_turns: int = 0
    """Chunks of collectives that have left since one of a message did."""
    outgoing: tuple[PeerConnection, ...] = ()
    """Both connections, that for chunks first."""
    heard: float | None = None
    """When anything of this run last came from it; None: never."""
    generation: int = 0
    """The newest view it has spoken in."""
    awaited: float | None = None
    """Since when it takes part in a view with this worker, where views change."""
    largest: int = 0
    """Bytes of the largest chunk that came from it."""
    told: float = 0.0
    """When anything was last sent to it."""
    again: float = 0.0
    """When things were last sent again."""
    connections: set[AcceptedConnection] = field(default_factory=set)
    """Those it has made to this worker's endpoint."""
    refused: int = 0
    """Messages of it that could not be read, in this view."""
    bye: LinkClosed | None = None
    state: int = WorkerState.absent
    step: int = 0

    @classmethod
    def reach(cls, rank: int, entry: BookEntry, endpoint: LinkEndpoint) -> "LinkPeer":
        way, aside = (endpoint.way_to(entry.address, entry.public) for _ in range(2))
        return cls(
            rank, entry, way, aside, outgoing=(PeerConnection(way, entry.address), PeerConnection(aside, entry.address))
        )

    @property
    def name(self) -> str:
        """By which messages know it: the id of the member, or the rank where members do not change."""
        return self.entry.member or str(self.rank)

    @property
    def has_waiting(self) -> bool:
        """Whether more could be sent to it if the rate limit allowed."""
        return bool(self.out.waiting) or (self.message_out is not None and self.message_out.has_more)

    @property
    def idle(self) -> bool:
        """Whether all has arrived that may leave."""
        return self.out.idle and (self.message_out is None or self.message_out.idle)

    @property
    def unsaid(self) -> bool:
        """Whether something has come that is not acknowledged yet."""
        return bool(self.into.unsaid) or (self.message_in is not None and self.message_in.link.unsaid > 0)

    def close(self) -> None:
        """Nothing more is said to it."""
        for connection in self.outgoing:
            connection.close()

    @property
    def up(self) -> bool:
        """Whether the way to it is connected and its key was right."""
        return self.outgoing[0].up

    @property
    def hears(self) -> bool:
        """Whether a word would reach it."""
        return self.outgoing[1].up

    @property
    def abused(self) -> bool:
        """Whether it has sent much on a connection that only leads to it."""
        return any(connection.abused for connection in self.outgoing)

    def look(self, now: float) -> bool:
        """What became of the connections since the last look; whether that for chunks has just been made (again)."""
        made = [connection.look(now) for connection in self.outgoing]
        return made[0]

    def gone(self, now: float) -> bool:
        way = self.outgoing[0]
        return way.down is not None and way.refusals >= GONE_REFUSALS and now - way.down >= GONE_SECONDS

    def silent(self, now: float, floor: float) -> float | None:
        """How long it has said nothing, if that is longer than a peer may: a chunk is on the way so long at most."""
        if self.heard is None:  # its process may still begin, and keys are exchanged before the first word
            silence = now - self.awaited if self.awaited is not None else 0.0
            return silence if silence > max(floor, FIRST_WORD) else None
        silence = now - self.heard
        return silence if silence > self.out.estimate.allowance(self.largest, floor) else None

    def __str__(self) -> str:
        host = f" (host {self.entry.host})" if self.entry.host else ""
        return f"worker {self.rank}{host}"

    def describe(self, now: float) -> str:
        """`worker 2 (host b), last seen computing in step 418, 3.2 s ago`."""
        if self.heard is None:
            return f"{self} at {self.entry.address}, which never came"
        state = WorkerState(self.state).name if self.state in WorkerState._value2member_map_ else "busy"
        return f"{self}, last seen {state} in step {self.step}, {max(0.0, now - self.heard):.1f} s ago"
