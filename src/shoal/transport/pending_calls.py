"""The calls of this worker that wait for a reply, by the member called and the number of the request.

    request begun ── register ──▶ table ── reply | failure | cancelled | member lost ──▶ the call ends

Used by the communication thread alone; a thread that waits for a call sees only its ticket.
"""

from shoal.core.errors import ShoalError
from shoal.transport.incoming_messages import IncomingMessage
from shoal.transport.message_body import parse
from shoal.transport.message_ports import CallFailed, CallReply, PendingCall
from shoal.transport.message_ticket import OutgoingMessage
from shoal.transport.messages import MessageKind


class PendingCallTable:
    """The calls that wait, of all members. Each is removed before it ends, so a second reply finds nothing."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, int], PendingCall] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def register(self, name: str, message: OutgoingMessage) -> None:
        """Enter a call when its request gets a number: a reply may come any time after that."""
        call = message.ticket
        assert isinstance(call, PendingCall)
        # A request that leaves again on a new stream has another number; a reply to the old one is of no use.
        self._calls.pop((name, call.number), None)
        call.number = message.number
        self._calls[name, call.number] = call

    def remove(self, name: str, call: PendingCall) -> None:
        """Wait no longer for a reply; one that comes later is dropped."""
        self._calls.pop((name, call.number), None)

    def of(self, name: str) -> list[PendingCall]:
        """Return the calls to a member."""
        return [call for (member, _), call in self._calls.items() if member == name]

    def reply_limit(self, name: str, number: int) -> int | None:
        """Return the most bytes that the caller takes as a reply; None if it does not wait any more."""
        call = self._calls.get((name, number))
        return call.largest if call is not None else None

    def answer(self, name: str, message: IncomingMessage) -> None:
        """End the call that a reply or failure is for."""
        call = self._calls.pop((name, message.of), None) if message.kept else None
        if call is None:
            return  # its caller's deadline has passed
        head, arrays = parse(message.body)
        if message.kind == MessageKind.failure:
            call.end(CallFailed(f"{call.what} failed there: {head.decode(errors='replace')}"))
        else:
            call.answer(CallReply(head, arrays))

    def fail_member(self, name: str, error: ShoalError) -> None:
        """End all calls to a member that is lost."""
        for key, call in [(key, call) for key, call in self._calls.items() if key[0] == name]:
            del self._calls[key]
            call.end(error)

    def fail_all(self, error: ShoalError) -> None:
        for call in self._calls.values():
            call.end(error)
        self._calls.clear()
