"""One direction of a link over a network that loses, repeats and holds back: every chunk arrives once, in order."""

import random

import numpy as np
import pytest

from shoal.transport.messages import CHUNK, ChunkHeader, pack
from shoal.transport.reliable import (
    FIRST_WINDOW,
    LARGEST_WINDOW,
    SMALLEST_WINDOW,
    IncomingLink,
    LinkEstimate,
    OutgoingLink,
)

SMALL = pack(np.zeros(4, np.float32), "float32")


def chunk(seq: int) -> ChunkHeader:
    return ChunkHeader("run", 0, 0, 0, seq, 0, seq, "sum", 0, 0, 16, 0, SMALL.dtype, SMALL.shape, SMALL.crc)


def fill(link: OutgoingLink, count: int, payload=SMALL) -> None:
    for _ in range(count):
        link.queue(chunk(0), payload)


@pytest.mark.parametrize("seed", range(20))
def test_everything_arrives_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    out, into, wire, got, now = OutgoingLink(), IncomingLink(), [], [], 0.0
    fill(out, 60)
    while len(got) < 60:
        now += 0.1
        assert now < 10_000, "it never gets through"
        while (in_flight := out.next(now)) is not None:
            wire.append(in_flight.chunk)
        if chance.random() < 0.1:  # the connection breaks, and is made again
            wire = [f.chunk for f in out.in_flight]
        if out.overdue(now):
            wire.append(out.in_flight[0].chunk)
        again = False
        for _ in range(min(len(wire), chance.randint(0, 5))):
            came = wire.pop(0)
            if chance.random() < 0.2:
                continue
            if chance.random() < 0.2:
                wire.append(came)  # late, or twice
            if into.take(came, now):
                got.append(came.seq)
            again = again or came.seq > into.expected
        if chance.random() < 0.7:
            out.acknowledged(into.expected, now)
            wire += [f.chunk for f in out.in_flight] if again else []
    assert got == list(range(60))
    out.acknowledged(into.expected, now)
    assert out.idle
    assert out.under_way == 0


def test_no_more_than_a_window_is_under_way() -> None:
    out = OutgoingLink()
    fill(out, 200, pack(np.zeros(CHUNK, np.uint8), "uint8"))
    sent = 0
    while out.next(0.0) is not None:
        sent += 1
    assert FIRST_WINDOW - 2 * CHUNK <= sent * CHUNK <= FIRST_WINDOW
    out.acknowledged(10, 1.0)
    assert out.next(1.0) is not None


def test_what_is_urgent_overtakes_what_waits() -> None:
    out, large = OutgoingLink(), pack(np.zeros(CHUNK, np.uint8), "uint8")
    for number in range(3):
        out.queue(chunk(number), large, urgency=2)
    first = out.next(0.0)
    out.queue(chunk(7), large, urgency=1)
    out.queue(chunk(8), large)
    left = [first, *(out.next(0.0) for _ in range(4))]
    assert [in_flight.chunk.task for in_flight in left] == [0, 8, 7, 1, 2]
    assert [in_flight.chunk.seq for in_flight in left] == [0, 1, 2, 3, 4], "the receiver takes chunks in this order"


def test_what_may_be_overtaken_keeps_less_under_way() -> None:
    """A chunk in the buffers of a socket cannot be overtaken any more."""
    sent = {}
    for urgency in (0, 1):
        out = OutgoingLink(LinkEstimate(rtt=0.001, rate=40e6))
        for _ in range(600):
            out.queue(chunk(0), pack(np.zeros(CHUNK, np.uint8), "uint8"), urgency)
        sent[urgency] = 0
        while out.next(0.0) is not None:
            sent[urgency] += 1
    assert sent[1] * CHUNK <= 40e6 * 0.1 < sent[0] * CHUNK <= 40e6 * 0.5
    out.queue(chunk(0), SMALL)
    assert out.next(0.0) is not None, "what is urgent has room"


def test_a_link_that_stands_still_gets_more_ahead() -> None:
    """Where acknowledgements come late, a short queue would leave the link idle in between."""
    estimate = LinkEstimate(rtt=0.001, rate=40e6)
    short = estimate.near
    for _ in range(5):
        estimate.drained(0)
    assert estimate.near == estimate.window > short
    for _ in range(200):
        estimate.drained(estimate.near)
    assert estimate.near == short


def test_a_new_generation_begins_with_nothing() -> None:
    out, into = OutgoingLink(), IncomingLink()
    fill(out, 5)
    out.next(0.0)
    assert into.take(chunk(0), 0.0)
    out.reset()
    into.reset()
    assert out.idle
    assert (out.next_seq, into.expected, into.unacknowledged) == (0, 0, 0)


def test_a_link_learns_what_it_is() -> None:
    link = LinkEstimate()
    assert link.allowance(CHUNK, 1.0) > 10, "nothing is known: any link may be a slow one"
    for moment, seconds in enumerate([0.3, 0.08, 0.5]):
        link.round_trip(seconds, float(moment))
    assert link.rtt == 0.08
    link.delivered(1 << 20, 0.1)
    assert link.rate == pytest.approx((1 << 20) / 0.1)
    link.delivered(100, 100.0)  # too little to tell
    assert link.rate == pytest.approx((1 << 20) / 0.1)
    assert link.allowance(1 << 20, 1.0) == pytest.approx(1 + 4 * 0.08 + 4 * 0.1)
    assert SMALLEST_WINDOW <= link.window <= LARGEST_WINDOW
    link.round_trip(0.2, 15.0)
    link.round_trip(0.2, 30.0)
    assert link.rtt == 0.2, "an old round trip is forgotten"
