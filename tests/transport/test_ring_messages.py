"""Messages through the memory of one host: as over links, and what is different there."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from forked import soon
from meshes import WAIT
from messenger_case import MessengerCase, serve

from shoal.core.errors import ShoalError
from shoal.hosts.arena import SharedArena
from shoal.transport.message_ring import COUNTERS, MessageRing
from shoal.transport.messenger import Messenger
from shoal.transport.ring_loop import RingLoop
from shoal.transport.rings import HostRings


@dataclass
class RingMember:
    loop: RingLoop
    messenger: Messenger

    def set_peers(self, book: Mapping[int, str]) -> None:
        self.loop.set_peers(book)


def join(arena: SharedArena, slot: int, name: str, book: Mapping[int, str]) -> RingMember:
    loop = RingLoop(HostRings(arena, len(book)), slot, name)
    loop.set_peers(book)
    loop.start()
    return RingMember(loop, Messenger(loop))


@contextmanager
def ring_members(size: int) -> Iterator[list[RingMember]]:
    arena = SharedArena.create()
    book = {slot: str(slot) for slot in range(size)}
    made = [join(arena, slot, name, book) for slot, name in book.items()]
    try:
        assert soon(WAIT, lambda: all(len(each.loop.peers) == size - 1 for each in made))
        yield made
    finally:
        for each in made:
            each.messenger.close()
            each.loop.close()
        arena.close()


class TestRingMessenger(MessengerCase):
    def members(self, size: int) -> AbstractContextManager[list[RingMember]]:
        return ring_members(size)

    def book(self, member: RingMember) -> Mapping[int, str]:
        return {member.loop.rank: member.loop.own_name} | {s: p.name for s, p in member.loop.peers.items()}


def test_who_comes_into_a_slot_hears_nothing_that_was_meant_for_the_one_before() -> None:
    """And what its predecessor had said, and nobody had heard, is passed over."""
    arena = SharedArena.create()
    first, second = {0: "a", 1: "b"}, {0: "a", 1: "c"}
    one, two = join(arena, 0, "a", first), join(arena, 1, "b", first)
    served = serve(one)
    one.messenger.push("b", "port", b"for b")
    two.messenger.call("a", "port", b"from b", deadline=WAIT)
    two.loop.close()  # with the ring to it not empty
    one.messenger.push("b", "port", b"never heard")
    three = join(arena, 1, "c", second)
    other = serve(three)
    early = three.messenger.push("a", "port", b"before it is known there")
    one.set_peers(second)
    early.wait(WAIT)
    assert one.messenger.call("c", "port", b"for c", deadline=WAIT).head == b"re for c"
    assert other.heads == [b"for c"]
    assert soon(WAIT, lambda: len(served.heads) == 2), "a push has arrived before its handler is called"
    assert served.heads == [b"from b", b"before it is known there"]
    for member in (one, three):
        member.loop.close()


def test_a_ring_gives_back_what_was_put_in_and_says_when_it_is_full() -> None:
    ring = MessageRing(memoryview(bytearray(COUNTERS)), lambda: memory, 4096)
    memory = memoryview(bytearray(4096))
    expected: list[tuple[bytes, bytes]] = []
    generator = np.random.default_rng(3)
    for number in range(2000):
        head, body = f"{number}".encode(), generator.bytes(int(generator.integers(0, 1900)))
        while not ring.put(head, memoryview(body)):
            frame = ring.take()
            assert frame is not None
            assert (frame[0], bytes(frame[1])) == expected.pop(0)
            ring.release()
        expected.append((head, body))
    while (frame := ring.take()) is not None:
        assert (frame[0], bytes(frame[1])) == expected.pop(0)
        ring.release()
    assert not expected
    with pytest.raises(ShoalError, match="at most half of it"):
        ring.put(b"", memoryview(bytes(3000)))
    assert ring.put(b"head", memoryview(b"body"))
    memory[:] = bytes([127]) * 4096
    with pytest.raises(ShoalError, match="damaged"):
        ring.take()
