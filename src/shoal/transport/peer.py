"""A peer as the communication thread sees it: both directions of its link, when it was last heard, how it ended."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import zmq

from shoal.hosts.status_board import WorkerState
from shoal.transport.connection import AcceptedConnection, PeerConnection
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.incoming_messages import IncomingMessages
from shoal.transport.messages import CHUNK, ChunkHeader, LinkClosed
from shoal.transport.outgoing_messages import OutgoingMessages
from shoal.transport.reliable import IncomingLink, OutgoingLink

FIRST_WORD = 15.0
"""Seconds a peer that was never heard has to connect."""
GONE_SECONDS, GONE_REFUSALS = 1.0, 5
"""A connection refused this often for this long: the process is gone. A slow or frozen peer never gets here, because
its kernel accepts connections for it."""


@dataclass
class LinkPeer:
    """Written by the communication thread; other threads may read single values."""

    rank: int
    entry: BookEntry
    chunk_socket: "zmq.Socket[bytes]"
    """Carries chunks."""
    control_socket: "zmq.Socket[bytes]"
    """Carries acknowledgements and heartbeats, which would come a whole window late behind chunks."""
    out: OutgoingLink[ChunkHeader] = field(default_factory=OutgoingLink)
    into: IncomingLink = field(default_factory=IncomingLink)
    message_out: OutgoingMessages | None = None
    """The message stream to the peer, beside the chunks of collectives; None before the first message."""
    message_in: IncomingMessages | None = None
    collective_turns: int = 0
    """Chunks of collectives sent since the last chunk of a message."""
    outgoing: tuple[PeerConnection, ...] = ()
    """Both connections, the one for chunks first."""
    heard: float | None = None
    """When anything of this run last came from the peer; None if never."""
    generation: int = 0
    """The newest generation that the peer has sent a message in."""
    awaited: float | None = None
    """Since when the peer is in a view with this worker; None if views do not change."""
    largest: int = 0
    """Bytes of the largest chunk received from the peer."""
    told: float = 0.0
    """When anything was last sent to the peer."""
    again: float = 0.0
    """When chunks were last sent again."""
    connections: set[AcceptedConnection] = field(default_factory=set)
    """The connections that the peer has made to this worker's endpoint."""
    refused: int = 0
    """Unreadable messages of the peer in this view."""
    bye: LinkClosed | None = None
    state: int = WorkerState.absent
    step: int = 0

    @classmethod
    def reach(cls, rank: int, entry: BookEntry, endpoint: LinkEndpoint) -> "LinkPeer":
        chunks, control = (endpoint.make_socket(entry.address, entry.public) for _ in range(2))
        return cls(
            rank,
            entry,
            chunks,
            control,
            outgoing=(PeerConnection(chunks, entry.address), PeerConnection(control, entry.address)),
        )

    @property
    def name(self) -> str:
        """Return the name that messages use: the member's id, or its rank if members do not change."""
        return self.entry.member or str(self.rank)

    piece: ClassVar[int] = CHUNK

    def open_messages(self, streams: Callable[[], int], numbers: Callable[[], int]) -> OutgoingMessages:
        """The stream of messages to it, which no more bytes a second may leave on than on that of collectives."""
        made = OutgoingMessages(f"{self}", streams, numbers)
        # The two streams are estimated apart, but leave by the same line.
        made.link.estimate.most = self.out.estimate.most
        return made

    def gone_text(self, moment: float) -> str:
        """Why nothing leads to it any more; empty if something may."""
        if not self.gone(moment):
            return ""
        return f"{self.describe(moment)}, is gone: nobody listens at {self.entry.address}"

    @property
    def has_waiting(self) -> bool:
        """Return whether more could be sent to the peer if the rate limit allowed."""
        return bool(self.out.waiting) or (self.message_out is not None and self.message_out.has_more)

    @property
    def idle(self) -> bool:
        """Return whether everything that may leave has arrived."""
        return self.out.idle and (self.message_out is None or self.message_out.idle)

    @property
    def unacknowledged(self) -> bool:
        """Return whether a received chunk is not acknowledged yet."""
        return bool(self.into.unacknowledged) or (
            self.message_in is not None and self.message_in.link.unacknowledged > 0
        )

    def close(self) -> None:
        """Close both connections; nothing more is sent to the peer."""
        for connection in self.outgoing:
            connection.close()

    @property
    def up(self) -> bool:
        """Return whether the chunk connection is open and the peer's key was right."""
        return self.outgoing[0].up

    @property
    def hears(self) -> bool:
        """Return whether a control message would reach the peer."""
        return self.outgoing[1].up

    @property
    def abused(self) -> bool:
        """Return whether the peer has sent much on a connection that this worker only writes to."""
        return any(connection.abused for connection in self.outgoing)

    def look(self, now: float) -> bool:
        """Update both connections; return whether the one for chunks has just been made (again)."""
        made = [connection.look(now) for connection in self.outgoing]
        return made[0]

    def gone(self, now: float) -> bool:
        way = self.outgoing[0]
        return way.down is not None and way.refusals >= GONE_REFUSALS and now - way.down >= GONE_SECONDS

    def silent(self, now: float, floor: float) -> float | None:
        """Return the seconds of silence, if they are more than its largest chunk would take, else None."""
        if self.heard is None:  # its process may still be starting, and handshakes come before the first message
            silence = now - self.awaited if self.awaited is not None else 0.0
            return silence if silence > max(floor, FIRST_WORD) else None
        # A large chunk keeps a slow line busy for longer than a heartbeat's interval, so the allowance grows with it.
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
