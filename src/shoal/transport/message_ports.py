"""The two ends of a message: a port with its handler, and a call that waits for its reply."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from shoal.core.errors import ShoalError
from shoal.transport.message_body import MessageBody
from shoal.transport.message_ticket import MessageTicket, OutgoingMessage
from shoal.transport.messages import Array, MessageKind

LONGEST_FAILURE = 1000


@dataclass(frozen=True)
class CallReply:
    """The answer of a handler to a call."""

    head: bytes = b""
    arrays: Sequence[Array] = ()


@dataclass(frozen=True)
class ReceivedMessage:
    """A message as its handler gets it; the arrays share the message's memory."""

    sender: str
    port: str
    head: bytes
    arrays: list[Array]
    is_call: bool


Handler = Callable[[ReceivedMessage], CallReply | None]
Job = tuple[ReceivedMessage, Callable[[CallReply | Exception | None], None]]


class CallFailed(ShoalError):  # noqa: N818  (of the member that was called)
    """The handler of a member failed; the error names the member and says why."""


@dataclass(eq=False)
class ServedPort:
    name: str
    handler: Handler
    credit: int
    largest: int
    admitted: set[str] | None
    """Members that may send to it; None: all."""
    jobs: "SimpleQueue[Job | None] | None"
    """The queue of the port's thread; None if the communication thread runs the handler."""

    def admits(self, sender: str) -> bool:
        return self.admitted is None or sender in self.admitted


class PendingCall(MessageTicket):
    """A call that waits for its reply."""

    def __init__(self, what: str, to: str, largest: int) -> None:
        super().__init__(what)
        self.to, self.largest = to, largest
        self.number = -1
        self.reply = CallReply()

    def arrived(self) -> None:
        """Do nothing: only the reply ends a call, not the arrival of its request."""

    def answer(self, reply: CallReply) -> None:
        self.reply = reply
        self.end()


def run_handler(handler: Handler, received: ReceivedMessage) -> CallReply | Exception | None:
    """Return what a handler returns or raises: an error in one message must not end the thread."""
    try:
        return handler(received)
    except Exception as error:  # noqa: BLE001  (told to the caller, or blamed on the sender)
        return error


def answer_message(
    port: str, number: int, outcome: CallReply | Exception | None, ticket: MessageTicket, left: Callable[[], None]
) -> OutgoingMessage:
    """Build the reply to call `number`, or the failure; `left` is called when it has left."""
    kind = MessageKind.reply
    try:
        if isinstance(outcome, Exception):
            raise outcome
        reply = outcome or CallReply()
        body = MessageBody(reply.head, reply.arrays)
    except Exception as error:  # noqa: BLE001  (a handler may return what cannot be sent)
        text = f"{type(error).__name__}: {error}"[:LONGEST_FAILURE]
        kind, body = MessageKind.failure, MessageBody(text.encode(errors="replace"))
    return OutgoingMessage(kind, port, body, ticket, of=number, left=left)
