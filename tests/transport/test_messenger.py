"""Messages over real sockets: once and in order, whatever becomes of views, connections, ports and members."""

import itertools
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import soon
from meshes import WAIT, begin, kill, meshes, numbers, total
from messenger_case import MessengerCase, serve
from proxy import Proxy

from shoal.core.clock import now
from shoal.core.errors import PeerLost, ShoalError
from shoal.transport.endpoint import BookEntry
from shoal.transport.mesh import LinkMesh
from shoal.transport.message_body import MessageBody
from shoal.transport.message_ticket import OutgoingMessage
from shoal.transport.messages import CHUNK, MessageKind
from shoal.transport.messenger import MessageTicket
from shoal.transport.rate_limit import RateLimit


class TestLinkMessenger(MessengerCase):
    def members(self, size: int) -> AbstractContextManager[list[LinkMesh]]:
        return meshes(size)

    def book(self, member: LinkMesh) -> Mapping[int, BookEntry]:
        return dict(member.loop.book)


def check_sum(made: list[LinkMesh], size: int = 50_000) -> None:
    tensors = numbers(len(made), size)
    wanted = torch.stack([tensor.double() for tensor in tensors]).sum(0)
    assert all(torch.equal(result.double(), wanted) for result in total(made, tensors))


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("threaded", [True, False])
def test_three_members_push_and_call(tmp_path: Path, keys: bool, threaded: bool) -> None:
    with meshes(3, None if keys else tmp_path) as made:
        received = [serve(mesh, threaded=threaded) for mesh in made]
        array = np.arange(3 * CHUNK, dtype=np.float32).reshape(3, -1)
        pairs = list(itertools.permutations(range(3), 2))
        tickets = [
            made[a].messenger.push(str(b), "port", f"push {a}".encode(), [array, np.zeros(0, np.int8)])
            for a, b in pairs
        ]
        for a, b in pairs:
            reply = made[a].messenger.call(str(b), "port", f"call {a}".encode(), [array + a], deadline=WAIT)
            assert reply.head == f"re call {a}".encode()
            assert np.array_equal(reply.arrays[0], 2 * (array + a))
        for ticket in tickets:
            ticket.wait(WAIT)
        for rank, each in enumerate(received):
            others = [other for other in range(3) if other != rank]
            assert sorted((m.sender, m.head, m.is_call) for m in each.messages) == sorted(
                [(str(o), f"push {o}".encode(), False) for o in others]
                + [(str(o), f"call {o}".encode(), True) for o in others]
            )
            assert all(np.array_equal(m.arrays[0], array) for m in each.messages if not m.is_call)


def test_a_mesh_that_sends_no_messages_has_no_stream(tmp_path: Path) -> None:
    with meshes(2, tmp_path) as made:
        serve(made[0])
        check_sum(made)
        assert all(peer.message_out is None and peer.message_in is None for m in made for peer in m.loop.peers.values())


def proxies(through: list[Proxy]) -> Callable[[str], str]:
    def make(address: str) -> str:
        through.append(Proxy(address))
        return through[-1].address

    return make


def test_connections_that_break_off_lose_and_repeat_nothing() -> None:
    """Both ways are cut three times in the middle of large messages, while calls go the other way."""
    through: list[Proxy] = []
    try:
        with meshes(2, through=proxies(through)) as made:
            received = [serve(mesh) for mesh in made]
            arrays = [np.full(2 * CHUNK, number, np.int16) for number in range(12)]
            for number, array in enumerate(arrays):
                if number in (1, 4, 7):
                    for proxy in through:
                        proxy.cut_after(100_000)
                ticket = made[0].messenger.push("1", "port", f"{number}".encode(), [array])
                made[1].messenger.call("0", "port", f"{number}".encode(), [array], deadline=WAIT)
                ticket.wait(WAIT)
            assert all(proxy.cuts >= 1 for proxy in through)
            for each in received:
                assert each.heads == [f"{number}".encode() for number in range(12)]
                same = zip(each.messages, arrays, strict=True)
                assert all(np.array_equal(message.arrays[0], array) for message, array in same)
    finally:
        for proxy in through:
            proxy.close()


def test_calls_and_pushes_outlive_a_view() -> None:
    """All form another view, and one without the caller, while the handler is in the middle of its call."""
    with meshes(3) as made:
        received, replies = serve(made[1]), []
        with received.held():
            caller = threading.Thread(
                target=lambda: replies.append(made[0].messenger.call("1", "port", b"long", deadline=WAIT))
            )
            caller.start()
            assert received.inside.wait(WAIT)
            large = made[0].messenger.push("1", "port", b"large", [np.ones(40 * CHUNK, np.uint8)])
            for generation, ranks in ((1, [0, 1, 2]), (2, [1, 2]), (3, [0, 1, 2])):
                members = [made[rank] for rank in ranks]
                for mesh in members:
                    mesh.reform(generation, ranks)
                check_sum(members)
        caller.join(WAIT)
        large.wait(WAIT)
        assert replies[0].head == b"re long"
        assert soon(WAIT, lambda: received.heads == [b"long", b"large"])
        assert received.messages[1].arrays[0].all()


def test_an_aborted_view_ends_collectives_only() -> None:
    with meshes(2) as made:
        received = serve(made[1])
        with received.held():
            ticket = made[0].messenger.push("1", "port", b"first")
            assert received.inside.wait(WAIT)
            ((task, _),) = begin(made[:1], numbers(1, 5000))
            made[0].abort("the user said so")
            with pytest.raises(PeerLost):
                made[0].wait(task, WAIT)
        ticket.wait(WAIT)
        assert made[0].messenger.call("1", "port", b"second", deadline=WAIT).head == b"re second"


def test_a_handler_that_sleeps_holds_up_neither_collectives_nor_other_ports() -> None:
    with meshes(2) as made:
        slow, quick = serve(made[1], "slow", credit=2), serve(made[1], "quick")
        with slow.held():
            block = np.zeros(20 * CHUNK, np.uint8)
            tickets = [made[0].messenger.push("1", "slow", f"{n}".encode(), [block]) for n in range(6)]
            assert slow.inside.wait(WAIT)
            for ticket in tickets[:2]:
                ticket.wait(WAIT)
            for _ in range(3):
                check_sum(made, 300_000)
            assert made[0].messenger.call("1", "quick", b"x", [block], deadline=WAIT).head == b"re x"
            assert not any(ticket.done.is_set() for ticket in tickets[2:]), "they wait at the sender"
            assert soon(WAIT, lambda: made[0].link(1).out.idle)
        for ticket in tickets:
            ticket.wait(WAIT)
        assert soon(WAIT, lambda: slow.heads == [f"{n}".encode() for n in range(6)])
        assert quick.heads == [b"x"]


def test_a_lost_member_ends_calls_and_pushes_with_its_name() -> None:
    with meshes(3) as made:
        received = serve(made[2])
        errors: list[ShoalError] = []

        def call(port: str) -> None:
            try:
                made[0].messenger.call("2", port, deadline=WAIT)
            except ShoalError as error:
                errors.append(error)

        with received.held():
            callers = [threading.Thread(target=call, args=(port,)) for port in ("port", "not served")]
            for caller in callers:
                caller.start()
            assert received.inside.wait(WAIT)
            ticket = made[0].messenger.push("2", "not served")
            kill(made[2])
            for caller in callers:
                caller.join(WAIT)
            with pytest.raises(PeerLost, match=r"worker 2 \(host c\)"):
                ticket.wait(WAIT)
        assert len(errors) == 2
        assert all(isinstance(error, PeerLost) and "worker 2 (host c)" in str(error) for error in errors)
        serve(made[1])
        assert made[0].messenger.call("1", "port", b"x", deadline=WAIT).head == b"re x"


def test_credit_that_was_under_way_is_given_again_to_a_member_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever is lost for a moment could send nothing to a port whose credit it had used up."""
    with meshes(2) as made:
        received, exchange, peer = serve(made[0], credit=1), made[0].loop.exchange, made[0].link(1)
        made[1].messenger.call("0", "port", b"first", deadline=WAIT)
        tried: list[bool] = []

        def lose() -> None:
            """Between the end of a handler and the leaving of its credit."""
            monkeypatch.setattr(peer, "gone", lambda now: True)
            exchange.send("1", OutgoingMessage(MessageKind.push, "none", MessageBody(b""), MessageTicket("it")))
            exchange.tick(peer, now())
            monkeypatch.undo()
            assert peer.message_out is not None
            tried.append(peer.message_out.stream == 0 and "port" in peer.message_out._grants)
            made[0].loop.chunk_sender.pump(peer)

        made[0].loop.call(lose)
        assert soon(WAIT, lambda: tried == [True])
        made[1].messenger.call("0", "port", b"second", deadline=WAIT)
        assert received.heads == [b"first", b"second"]


def test_messages_and_collectives_share_a_rate_limit() -> None:
    """Neither starves the other: a sum ends while a large message is under way, and the message arrives too."""
    with meshes(2, allowance=RateLimit(20e6)) as made:
        received = serve(made[1])
        ticket = made[0].messenger.push("1", "port", b"large", [np.zeros(80 * CHUNK, np.uint8)])
        tasks = begin(made, numbers(2, 1_000_000))
        for mesh, (task, _) in zip(made, tasks, strict=True):
            mesh.wait(task, WAIT)
        ticket.wait(WAIT)
        assert soon(WAIT, lambda: received.heads == [b"large"])
