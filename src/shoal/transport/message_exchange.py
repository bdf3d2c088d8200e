"""Messages between members, in the communication thread: streams, credit, handlers and pending calls.

call ── stream ──> handler (this thread, or a thread of its port) ── reply ── stream ──> caller
                    └─ credit goes back when the message is handled, and its reply has left

A message whose port has no credit waits at its sender, where it blocks neither other ports nor collectives.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from shoal.core.clock import now
from shoal.core.errors import PayloadError, PeerLost, ShoalError
from shoal.transport.incoming_messages import ChunkArrival, IncomingMessage, IncomingMessages
from shoal.transport.message_body import parse
from shoal.transport.message_peers import MessagePeer, MessageSender
from shoal.transport.message_ports import (
    CallReply,
    PendingCall,
    ReceivedMessage,
    ServedPort,
    answer_message,
    run_handler,
)
from shoal.transport.message_ticket import MessageTicket, OutgoingMessage
from shoal.transport.messages import MessageAck, MessageChunk, MessageKind
from shoal.transport.outgoing_messages import OutgoingMessages
from shoal.transport.pending_calls import PendingCallTable
from shoal.transport.reliable import ACK_CHUNKS

P = TypeVar("P", bound=MessagePeer)


class MessageExchange(Generic[P]):
    """Everything in this class runs in the communication thread."""

    def __init__(
        self,
        sender: MessageSender[P],
        peers: Mapping[int, P],
        post: Callable[[Callable[[], None]], None],
        suspect: Callable[[P, str], None],
    ) -> None:
        """`post` runs a function soon in this thread, and any thread may call it. `suspect` reports a misbehaving
        peer."""
        self.sender, self.peers, self._post, self._suspect = sender, peers, post, suspect
        self.silence: float | None = None
        """Seconds of silence after which a member counts as lost; None if membership decides that."""
        self.ports: dict[str, ServedPort] = {}
        self.inbox: dict[str, IncomingMessages] = {}
        """By member, never removed: a stream that was dropped must not be continued in the middle."""
        self.calls = PendingCallTable()
        # From the clock, so that a member that restarts under the same name has later streams than before.
        self._streams, self._numbers = itertools.count(int(now() * 1e6) + 1), itertools.count()

    def find(self, name: str) -> P | None:
        for peer in self.peers.values():
            if peer.name == name:
                return peer
        return None

    # Sending

    def send(self, to: str, message: OutgoingMessage) -> None:
        """Queue a message to a member; it fails at once if there is no link."""
        peer = self.find(to)
        if peer is None:
            message.fail(PeerLost(f"{message.ticket.what}: {to} is no member that this worker has a link to"))
            return
        if isinstance(message.ticket, PendingCall):
            message.begun = lambda begun: self.calls.register(peer.name, begun)
        self._outgoing(peer).push(message)
        self.sender.pump(peer)

    def _outgoing(self, peer: P) -> OutgoingMessages:
        if peer.message_out is None:
            peer.message_out = peer.open_messages(lambda: next(self._streams), lambda: next(self._numbers))
        return peer.message_out

    def cancel(self, to: str, ticket: MessageTicket, error: ShoalError) -> None:
        """Stop sending a message, and wait for no reply."""
        ticket.end(error)
        if isinstance(ticket, PendingCall):
            self.calls.remove(to, ticket)
        peer = self.find(to)
        if peer is not None and peer.message_out is not None:
            peer.message_out.cancel(ticket, error)
            self.sender.pump(peer)

    # Ports

    def serve(self, port: ServedPort) -> None:
        self.ports[port.name] = port
        for name in list(self.inbox):
            self._grant(name, port)
            self._pump(name)

    def admit(self, port: str, name: str) -> None:
        """Let one more member send to a port with limited senders."""
        served = self.ports[port]
        if served.admitted is not None and name not in served.admitted:
            served.admitted.add(name)
            self._grant(name, served)
            self._pump(name)

    def _pump(self, name: str) -> None:
        if (peer := self.find(name)) is not None:
            self.sender.pump(peer)

    def _grant(self, name: str, port: ServedPort) -> None:
        """Queue credit for a member. It sends nothing itself, because it may be called while a chunk is being sent."""
        peer, inbox = self.find(name), self.inbox.get(name)
        if peer is None or inbox is None or not port.admits(name):
            return
        granted = inbox.grant(port.name, port.credit, port.largest)
        if granted is not None:
            self._outgoing(peer).grant(port.name, granted, inbox.stream, port.largest)

    # Hearing

    def _incoming(self, peer: P) -> IncomingMessages:
        if peer.message_in is None:
            peer.message_in = self.inbox.setdefault(peer.name, IncomingMessages(piece=peer.piece))
        return peer.message_in

    def hear(self, peer: P, chunk: MessageChunk, piece: memoryview) -> None:
        """Take in a chunk, of any view."""
        inbox = self._incoming(peer)
        match inbox.sort(chunk):
            case ChunkArrival.next:
                self._take(peer, inbox, chunk, piece)
            case ChunkArrival.repeated:
                inbox.link.unacknowledged += ACK_CHUNKS  # acknowledge at once: the last acknowledgement was lost
            case ChunkArrival.gap:
                self.sender.ask_messages_again(peer, inbox, chunk.stream)
            case ChunkArrival.closed:
                self.sender.say_closed(peer, inbox)
            case ChunkArrival.stale:
                return
        if chunk.back:
            self._acknowledged(peer, chunk.back, chunk.expected, chunk.echo, chunk.held)
        self.sender.pump(peer)

    def _take(self, peer: P, inbox: IncomingMessages, chunk: MessageChunk, piece: memoryview) -> None:
        adopted = chunk.stream > inbox.stream
        whole = inbox.take(chunk, piece, peer.heard or now(), lambda number: self.calls.reply_limit(peer.name, number))
        peer.largest = max(peer.largest, len(piece))
        # A new stream has no credit yet, and a cancelled message has given its credit back.
        if adopted or chunk.kind == MessageKind.cancel:
            for port in self.ports.values():
                self._grant(peer.name, port)
        if chunk.kind == MessageKind.credit:
            self._outgoing(peer).credit(chunk.port, chunk.number, chunk.of, chunk.total)
        elif whole is not None:
            # A message of several pieces is often the last for a while.
            if whole.total > peer.piece:
                inbox.link.unacknowledged += ACK_CHUNKS  # acknowledge at once: no further chunk will carry it
            self._deliver(peer, whole)

    def hear_ack(self, peer: P, ack: MessageAck) -> None:
        self._acknowledged(peer, ack.stream, ack.expected, ack.stamp, ack.held, ack.again, ack.closed)
        self.sender.pump(peer)

    def _acknowledged(
        self,
        peer: P,
        stream: int,
        expected: int,
        stamp: int,
        held: int,
        again: bool = False,
        closed: bool = False,
    ) -> None:
        out, moment = peer.message_out, now()
        if out is None or stream != out.stream:
            return
        if stamp:
            out.link.estimate.round_trip(moment - (stamp + held) / 1e9, moment)
        if closed:
            self._restart(peer, out, expected)
        else:
            out.acknowledged(expected, moment)
            if again and out.link.may_repeat(moment):
                self.sender.repeat_messages(peer)

    def _restart(self, peer: P, out: OutgoingMessages, expected: int) -> None:
        waiting = self.calls.of(peer.name)
        out.restart(expected)
        self._grant_again(peer)
        # Requests that had not begun leave again on the new stream, so their calls still wait for a reply.
        kept = out.unbegun_tickets
        for call in waiting:
            if call not in kept:
                self.calls.remove(peer.name, call)
                call.end(PeerLost(f"{call.what}: {peer} has dropped the link meanwhile"))

    # Delivering

    def _deliver(self, peer: P, message: IncomingMessage) -> None:
        if message.kind in (MessageKind.reply, MessageKind.failure):
            self.calls.answer(peer.name, message)
            return
        port, inbox = self.ports[message.port], self._incoming(peer)
        head, arrays = parse(message.body)
        received = ReceivedMessage(peer.name, port.name, head, arrays, message.kind == MessageKind.call)
        # Short handlers run here, because handing a message to another thread costs more than they do.
        if port.jobs is None:
            self._finish(peer.name, inbox, port, message, run_handler(port.handler, received))
        else:
            finish = self._finish
            port.jobs.put(
                (received, lambda out: self._post(lambda: finish(received.sender, inbox, port, message, out)))
            )

    def _finish(
        self,
        name: str,
        inbox: IncomingMessages,
        port: ServedPort,
        message: IncomingMessage,
        outcome: CallReply | Exception | None,
    ) -> None:
        """Reply to a handled message, or blame its sender, and give the credit back."""

        def free() -> None:
            inbox.handled(message)
            self._grant(name, port)

        peer = self.find(name)
        # An error in a call goes to its caller; only a push has no caller to tell, so its sender is suspected.
        # PayloadError says that the content is invalid, so its sender is to blame even for a call.
        is_call = message.kind == MessageKind.call
        to_blame = isinstance(outcome, PayloadError) or (isinstance(outcome, Exception) and not is_call)
        if peer is not None and to_blame:
            self._suspect(peer, f"a message of {peer} for port {port.name} cannot be handled: {outcome!r}")
        # The credit of a call comes back when its reply has left, so replies cannot pile up for a caller that reads
        # nothing.
        if peer is None or not is_call:
            free()
            self._pump(name)
            return
        what = f"the reply of {port.name} to {peer}"
        self.send(name, answer_message(port.name, message.number, outcome, MessageTicket(what), free))

    # Losses

    def tick(self, peer: P, moment: float) -> None:
        """Send again what is overdue, and notice if the peer is gone."""
        out = peer.message_out
        if out is None:
            return
        if peer.up and out.link.overdue(moment):
            self.sender.transmit(peer, out.link.in_flight[0])
        if out.is_empty and not self.calls.of(peer.name):
            return
        if peer.bye is not None:
            self.lose(peer, f"it has {peer.bye.reason}")
        elif why := peer.gone_text(moment):
            self.lose(peer, why)
            self._grant_again(peer)
        elif self.silence is not None and (silence := peer.silent(moment, self.silence)) is not None:
            self.lose(peer, f"{peer.describe(moment)}, has been silent for {silence:.1f} s")
            self._grant_again(peer)

    def _grant_again(self, peer: P) -> None:
        """Grant all credit anew on a new stream: grants in flight are lost with the old one, and the peer may
        return."""
        inbox, out = self._incoming(peer), self._outgoing(peer)
        for port, (granted, largest) in inbox.grants.items():
            out.grant(port, granted, inbox.stream, largest)

    def lose(self, peer: P, why: str) -> None:
        """Fail everything that waits for this member."""
        error = PeerLost(f"worker {self.sender.rank} has lost {peer}: {why}")
        self.calls.fail_member(peer.name, error)
        if peer.message_out is not None:
            peer.message_out.close(error)

    def drop(self, peer: P) -> None:
        """Forget a peer whose link is removed; a later link to it starts from nothing."""
        self.lose(peer, "it is no member any more")
        if peer.name in self.inbox:
            self.inbox[peer.name].close()

    def abort(self, error: ShoalError) -> None:
        """Fail everything, because the thread ends."""
        for peer in self.peers.values():
            if peer.message_out is not None:
                peer.message_out.close(error)
        self.calls.fail_all(error)
