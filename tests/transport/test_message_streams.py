"""The message stream between two members as pure state machines: credit, order, superseding, loss, a dropped link."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import PeerLost, ShoalError
from shoal.transport.incoming_messages import MOST_PARTS, ChunkArrival, IncomingMessages
from shoal.transport.message_body import MessageBody, parse
from shoal.transport.message_ticket import MessageTicket, OutgoingMessage
from shoal.transport.messages import CHUNK, MessageChunk, MessageKind, ProtocolViolation
from shoal.transport.outgoing_messages import MOST_PORTS, OutgoingMessages

LARGEST = 10 * CHUNK
ENOUGH = 1 << 30


@dataclass
class Pair:
    """One direction, with a wire that loses, repeats and holds back as `chance` says; credit goes back at once."""

    chance: random.Random
    ports: dict[str, int]
    out: OutgoingMessages = field(init=False)
    into: IncomingMessages = field(default_factory=IncomingMessages)
    wire: list = field(default_factory=list)
    got: list[tuple[str, bytes]] = field(default_factory=list)
    held: list = field(default_factory=list)
    """Messages that no handler has taken yet."""
    now: float = 0.0

    def __post_init__(self) -> None:
        streams, numbers = itertools.count(1), itertools.count()
        self.out = OutgoingMessages("worker 1", lambda: next(streams), lambda: next(numbers))

    def push(self, port: str, head: bytes, size: int = 0, key: object = None, priority: int = 0) -> MessageTicket:
        ticket = MessageTicket(head.decode())
        body = MessageBody(head, [np.zeros(size, np.uint8)] if size else [])
        self.out.push(OutgoingMessage(MessageKind.push, port, body, ticket, priority, key))
        return ticket

    def leave(self) -> None:
        while (in_flight := self.out.next(self.now, ENOUGH)) is not None:
            self.wire.append(in_flight)

    def arrive(self, count: int | None = None, loss: float = 0.0) -> None:
        for _ in range(len(self.wire) if count is None else min(count, len(self.wire))):
            if not self.wire:  # the stream was begun anew
                return
            in_flight = self.wire.pop(0)
            if self.chance.random() < loss:
                continue
            if self.chance.random() < loss:
                self.wire.append(in_flight)  # late, or twice
            self._hear(in_flight.chunk, in_flight.payload.frame.buffer)

    def _hear(self, chunk: MessageChunk, piece: memoryview) -> None:
        arrival = self.into.sort(chunk)
        if arrival is ChunkArrival.closed:
            self.out.restart(self.into.link.expected)
            self.wire.clear()
        elif arrival is ChunkArrival.next:
            adopted = chunk.stream > self.into.stream
            whole = self.into.take(chunk, piece, self.now, lambda number: None)
            if adopted:
                self.grant()
            if whole is not None:
                self.got.append((whole.port, parse(whole.body)[0]))
                self.held.append(whole)

    def handle(self, count: int | None = None) -> None:
        for _ in range(len(self.held) if count is None else min(count, len(self.held))):
            self.into.handled(self.held.pop(0))
        self.grant()

    def grant(self) -> None:
        for port, credit in self.ports.items():
            granted = self.into.grant(port, credit, LARGEST)
            if granted is not None:
                self.out.credit(port, granted, self.into.stream, LARGEST)

    def acknowledge(self) -> None:
        self.out.acknowledged(self.into.link.expected, self.now)

    def turn(self) -> None:
        self.leave()
        self.arrive()
        self.acknowledge()
        self.handle()


def quiet(**ports: int) -> Pair:
    return Pair(random.Random(0), ports or {"p": 4})


pushes = st.lists(
    st.tuples(st.sampled_from("pq"), st.sampled_from([0, 1, CHUNK - 40, CHUNK, 3 * CHUNK]), st.integers(0, 2)),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(pushes, st.integers(0, 2**32), st.sampled_from([0.0, 0.2]), st.integers(1, 5))
def test_every_message_arrives_once_and_in_order(said: list, seed: int, loss: float, credit: int) -> None:
    pair = Pair(random.Random(seed), {"p": credit, "q": 3})
    tickets = [pair.push(port, f"{n}".encode(), size, None, rank) for n, (port, size, rank) in enumerate(said)]
    for _ in range(5000):
        pair.now += 0.1
        pair.leave()
        if pair.out.link.overdue(pair.now) or pair.chance.random() < 0.2:
            pair.wire = list(pair.out.link.in_flight)  # asked for, or after a connection that broke
        pair.arrive(pair.chance.randint(0, 6), loss)
        if pair.chance.random() < 0.5:
            pair.acknowledge()
        pair.handle(pair.chance.randint(0, 2))
        if all(ticket.done.is_set() for ticket in tickets):
            break
    assert all(ticket.done.is_set() and ticket.error is None for ticket in tickets), "it never gets through"
    assert len(pair.got) == len(set(pair.got)) == len(said)
    for port in "pq":
        for rank in range(3):
            wanted = [n for n, each in enumerate(said) if (each[0], each[2]) == (port, rank)]
            got = [int(head) for where, head in pair.got if where == port and int(head) in wanted]
            assert got == wanted, "equal ones keep their order"


def test_a_port_without_credit_holds_up_no_other() -> None:
    pair = quiet(p=2, q=2)
    for number in range(5):
        pair.push("p", f"p{number}".encode())
    pair.leave()
    pair.arrive()
    pair.acknowledge()
    for number in range(2):
        pair.push("q", f"q{number}".encode())
    for _ in range(3):
        pair.leave()
        pair.arrive()
        pair.acknowledge()
    assert [head for _, head in pair.got] == [b"p0", b"p1", b"q0", b"q1"]
    assert not pair.out.has_more, "nothing is on the link that nobody takes"
    pair.handle(2)
    pair.turn()
    assert [head for _, head in pair.got[4:]] == [b"p2", b"p3"]


def test_a_port_that_nobody_serves_costs_the_receiver_nothing() -> None:
    pair = quiet(p=1)
    pair.push("nobody", b"x", 5 * CHUNK)
    for _ in range(3):
        pair.turn()
    assert pair.got == []
    assert pair.into.link.expected == 1, "a greeting came"
    assert pair.out.idle


def test_a_newer_message_replaces_one_that_has_not_left() -> None:
    pair = quiet(p=1)
    tickets = [pair.push("p", f"{n}".encode(), key="weights") for n in range(3)]
    tickets.append(pair.push("p", b"other"))
    pair.leave()
    pair.arrive()
    pair.leave()
    pair.arrive()
    tickets += [pair.push("p", f"late {n}".encode(), key="weights") for n in range(2)]
    for _ in range(5):
        pair.turn()
    assert [head for _, head in pair.got] == [b"2", b"other", b"late 1"]
    assert [ticket.superseded for ticket in tickets] == [True, True, False, False, True, False]
    assert all(ticket.done.is_set() for ticket in tickets)


def test_what_has_begun_is_not_replaced() -> None:
    pair = quiet(p=1)
    pair.turn()
    first = pair.push("p", b"first", 3 * CHUNK, key=1)
    pair.leave()  # the greeting
    pair.arrive()
    pair.out.next(0.0, ENOUGH)
    second = pair.push("p", b"second", key=1)
    pair.wire = list(pair.out.link.in_flight)
    for _ in range(5):
        pair.turn()
    assert not first.superseded
    assert not second.superseded
    assert [head for _, head in pair.got] == [b"first", b"second"]


def test_a_higher_priority_overtakes_in_the_middle_of_a_message() -> None:
    pair = quiet(p=3)
    pair.push("p", b"large", 5 * CHUNK)
    pair.leave()
    pair.arrive()
    for _ in range(2):
        pair.wire.append(pair.out.next(0.0, ENOUGH))
    pair.push("p", b"urgent", priority=1)
    pair.turn()
    assert [head for _, head in pair.got] == [b"urgent", b"large"]


def test_a_dropped_link_delivers_nothing_twice_and_keeps_what_had_not_begun() -> None:
    pair = quiet(p=8)
    pair.push("p", b"before")
    pair.turn()
    pair.turn()
    begun = pair.push("p", b"begun", 3 * CHUNK)
    later = pair.push("p", b"later")
    pair.leave()
    pair.arrive(2)
    pair.into.close()
    pair.arrive()
    pair.turn()
    pair.turn()
    assert isinstance(begun.error, PeerLost)
    assert later.done.is_set()
    assert later.error is None
    assert [head for _, head in pair.got] == [b"before", b"later"]


def test_the_queue_of_a_member_does_not_grow_with_new_streams() -> None:
    """Else one that restarts its stream again and again would fill a port whose handler is slow."""
    pair = quiet(p=2)
    for _ in range(10):
        for number in range(4):
            pair.push("p", f"{number}".encode())
        for _ in range(3):
            pair.leave()
            pair.arrive()
            pair.acknowledge()
        pair.out.restart(0)
        pair.wire.clear()
    assert len(pair.held) == 2


def test_a_cancelled_message_is_forgotten_and_its_credit_comes_back() -> None:
    pair = quiet(p=1)
    first = pair.push("p", b"first", 5 * CHUNK)
    second = pair.push("p", b"second")
    third = pair.push("p", b"third")
    pair.leave()
    pair.arrive()
    for _ in range(2):
        pair.wire.append(pair.out.next(0.0, ENOUGH))
    pair.arrive()
    for ticket in (first, third):
        pair.out.cancel(ticket, ShoalError("cancelled"))
    pair.turn()
    pair.turn()
    assert [head for _, head in pair.got] == [b"second"]
    assert second.done.is_set()
    assert str(first.error) == str(third.error) == "cancelled"


def test_a_message_larger_than_its_port_takes_fails_at_the_sender() -> None:
    pair = quiet(p=1)
    large, small = pair.push("p", b"large", LARGEST), pair.push("p", b"small")
    pair.turn()
    pair.turn()
    assert "port p of worker 1 takes at most" in str(large.error)
    assert small.error is None
    assert pair.got == [("p", b"small")]


def data(number: int = 0, seq: int = 1, size: int = 10, **change: object) -> tuple[MessageChunk, memoryview]:
    fields = {"kind": MessageKind.push, "port": "p", "of": 0, "index": 0, "total": 10, "stamp": 0} | change
    return MessageChunk("run", 0, 0, 1, seq, 1, number=number, **fields), memoryview(bytes(size))


def opened() -> IncomingMessages:
    into = IncomingMessages()
    hello = MessageChunk("run", 0, 0, 1, 0, 1, MessageKind.hello, "", 0, 0, 0, 0, 0)
    assert into.sort(hello) is ChunkArrival.next
    into.take(hello, memoryview(b""), 0.0, lambda number: None)
    assert into.grant("p", 2, 2 * CHUNK) == 2
    return into


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"port": "q"}, "without credit"),
        ({"total": 2 * CHUNK + 1, "size": CHUNK}, "it takes"),
        ({"total": 11}, "were due"),
        ({"total": 0, "size": 0}, "were due"),
        ({"index": 1}, "has not begun"),
        ({"index": 2**62}, "has not begun"),
        ({"kind": MessageKind.hello}, "middle of a stream"),
        ({"kind": MessageKind.credit}, "with 10 bytes"),
        ({"kind": MessageKind.cancel}, "with 10 bytes"),
        ({"kind": MessageKind.reply, "of": 7, "total": 101, "size": 10}, "the caller takes"),
    ],
)
def test_what_no_honest_member_sends_is_refused_before_memory_is_taken(lie: dict, why: str) -> None:
    into = opened()
    with pytest.raises(ProtocolViolation, match=why):
        into.take(*data(**lie), 0.0, lambda number: 100 if number == 7 else None)
    assert not into._parts or not next(iter(into._parts.values())).body


def test_a_number_is_delivered_once_whoever_says_it_again() -> None:
    into = opened()
    assert into.take(*data(5), 0.0, lambda number: None) is not None
    with pytest.raises(ProtocolViolation, match="message 5 after 5"):
        into.take(*data(5, seq=2), 0.0, lambda number: None)


def test_credit_is_used_up_and_memory_grows_as_bytes_arrive() -> None:
    into = opened()
    for number in range(2):
        into.take(*data(number, 1 + number, CHUNK, total=2 * CHUNK), 0.0, lambda number: None)
    assert [len(part.body) for part in into._parts.values()] == [CHUNK, CHUNK]
    with pytest.raises(ProtocolViolation, match="without credit"):
        into.take(*data(2, 3), 0.0, lambda number: None)


def test_replies_that_nobody_waits_for_take_no_memory() -> None:
    into = opened()
    for number in range(MOST_PARTS):
        reply = data(number, number + 1, CHUNK, kind=MessageKind.reply, of=number, total=2 * CHUNK)
        into.take(*reply, 0.0, lambda number: None)
    assert not any(part.body for part in into._parts.values())
    reply = data(MOST_PARTS, MOST_PARTS + 1, CHUNK, kind=MessageKind.reply, total=2 * CHUNK)
    with pytest.raises(ProtocolViolation, match="have not ended"):
        into.take(*reply, 0.0, lambda number: None)


def test_a_stream_begins_with_a_greeting_and_an_older_one_is_not_heard() -> None:
    into = IncomingMessages()
    assert into.sort(data(seq=3)[0]) is ChunkArrival.gap
    with pytest.raises(ProtocolViolation, match="begins with a push"):
        into.take(*data(seq=0), 0.0, lambda number: None)
    into = opened()
    into.stream = 2
    assert into.sort(data()[0]) is ChunkArrival.stale


def test_credit_on_ever_more_ports_is_a_lie() -> None:
    pair = quiet()
    pair.push("p", b"x")
    pair.turn()
    for number in range(MOST_PORTS - 1):
        pair.out.credit(f"port {number}", 1, pair.out.stream, 1)
    with pytest.raises(ProtocolViolation, match="more than"):
        pair.out.credit("one more", 1, pair.out.stream, 1)
    pair.out.credit("of another stream", 1, pair.out.stream + 1, 1)
