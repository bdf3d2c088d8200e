"""What messages need of whatever carries them: links between hosts, or the memory of one."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from shoal.transport.incoming_messages import IncomingMessages
from shoal.transport.messages import LinkClosed, MessageChunk
from shoal.transport.outgoing_messages import OutgoingMessages
from shoal.transport.reliable import ChunkInFlight


class MessagePeer(Protocol):
    """The way to one member. Used by the communication thread."""

    message_out: OutgoingMessages | None
    message_in: IncomingMessages | None
    largest: int
    heard: float | None
    bye: LinkClosed | None

    @property
    def name(self) -> str:
        """By which messages know it."""

    @property
    def piece(self) -> int:
        """Bytes of a message that travel at a time, in both directions."""

    @property
    def up(self) -> bool:
        """Whether what is overdue may be sent again."""

    def open_messages(self, streams: Callable[[], int], numbers: Callable[[], int]) -> OutgoingMessages: ...

    def gone_text(self, moment: float) -> str:
        """Why nothing leads to it any more; empty if something may."""

    def silent(self, now: float, floor: float) -> float | None: ...

    def describe(self, now: float) -> str: ...


P = TypeVar("P", bound=MessagePeer, contravariant=True)


class MessageSender(Protocol[P]):
    """Sends to peers of its kind. Used by the communication thread."""

    rank: int

    def pump(self, peer: P) -> None:
        """Everything leaves that may."""

    def transmit(self, peer: P, flying: ChunkInFlight[MessageChunk]) -> None: ...

    def repeat_messages(self, peer: P) -> None: ...

    def ask_messages_again(self, peer: P, inbox: IncomingMessages, stream: int) -> None: ...

    def say_closed(self, peer: P, inbox: IncomingMessages) -> None: ...
