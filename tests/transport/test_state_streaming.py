"""State streamed to a newcomer that is in no view: in order, while members go on; and to one that never takes it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from forked import soon
from meshes import WAIT, meshes, numbers, total

from shoal.groups import state_streaming
from shoal.groups.state_streaming import StateStreamClient, StateStreamServer, _entry
from shoal.membership.member import StreamingPartners
from shoal.membership.protocol import MemberInfo, StreamStateFrom, StreamStateTo
from shoal.membership.view import MembershipView
from shoal.transport.endpoint import LinkEndpoint
from shoal.transport.keys import CurveKeyPair
from shoal.transport.mesh import LinkMesh
from shoal.transport.messages import CHUNK

NEWCOMER = "w5.1"


@pytest.fixture
def session() -> Any:
    info = MemberInfo("tcp://127.0.0.1:9", CurveKeyPair.new().public.decode(), "h", True)
    partners = StreamingPartners()
    partners.hear(StreamStateTo(generation=3, member=NEWCOMER, info=info))
    return SimpleNamespace(agent=SimpleNamespace(streaming_partners=partners), view=MembershipView(3, ("w0.0", "w1.0")))


def test_a_newcomer_that_takes_nothing_is_stalled_and_its_queue_goes_with_it(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with meshes(2) as made:
        mesh, server = made[0], StateStreamServer(made[0], session)
        assert server.asked() == [NEWCOMER]
        server.open(NEWCOMER)
        server.give(NEWCOMER, bytes(1 << 20))
        mesh._command(lambda: None)  # what was handed in before is in the queue now
        out = mesh.link(5).message_out
        assert out is not None
        assert len(out.unbegun_tickets) == 1, "it waits for a peer that never comes"
        assert not server.stalled(NEWCOMER)
        monkeypatch.setattr(state_streaming, "STALLED", -1.0)
        assert server.stalled(NEWCOMER)
        server.drop(NEWCOMER)
        assert out.is_empty
        assert 5 not in mesh.loop.peers
        assert sorted(mesh.loop.book) == [0, 1], "members stay"
        assert server.serves(NEWCOMER), "it is known, so that it is not begun again"


def test_who_asks_again_after_a_silence_does_not_add_to_what_waits(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with meshes(2) as made:
        server = StateStreamServer(made[0], session)
        asked = session.agent.streaming_partners.asked[NEWCOMER]
        for _ in range(3):
            session.agent.streaming_partners.asked[NEWCOMER] = asked
            server.open(NEWCOMER)
            server.give(NEWCOMER, bytes(1 << 20))
            made[0]._command(lambda: None)  # what was handed in before is in the queue now
            out = made[0].link(5).message_out
            assert out is not None
            assert len(out.unbegun_tickets) == 1, "one state"
            monkeypatch.setattr(state_streaming, "FORGOTTEN", -1.0)
            assert server.asked() == []
            assert 5 not in made[0].loop.peers
            monkeypatch.undo()


def session_of(slot: int) -> Any:
    """The session of a newcomer that joins as this slot."""
    agent = SimpleNamespace(info=MemberInfo("", "", "h", True))
    return SimpleNamespace(member=f"w{slot}.1", agent=agent)


@contextmanager
def streaming(session: Any) -> Iterator[tuple[list[LinkMesh], StateStreamServer, LinkMesh, StateStreamClient]]:
    """Two members, one of which streams its state to a newcomer that has not been told by whom."""
    endpoint = LinkEndpoint("tcp://127.0.0.1:*", CurveKeyPair.new())
    assert endpoint.keys is not None
    own = MemberInfo(endpoint.address, endpoint.keys.public.decode(), "new", True)
    session_5 = session_of(5)
    session_5.agent.info = own
    came = LinkMesh("run", {5: _entry("w5.1", own)}, 5, endpoint)
    try:
        with meshes(2) as made:
            session.agent.streaming_partners.hear(StreamStateTo(generation=3, member=NEWCOMER, info=own))
            server, client = StateStreamServer(made[0], session), StateStreamClient(came, session_5)
            server.open(NEWCOMER)
            yield made, server, came, client
    finally:
        came.close()


def offered(made: list[LinkMesh]) -> StreamStateFrom:
    keys = made[0].loop.endpoint.keys
    assert keys is not None
    sender = MemberInfo(made[0].loop.endpoint.address, keys.public.decode(), "a", False)
    return StreamStateFrom(generation=3, member="w0.0", info=sender, patience=WAIT)


def test_a_newcomer_takes_items_in_order_while_the_members_go_on(session: Any) -> None:
    items = [os.urandom(size) for size in (5 * CHUNK + 17, 1, CHUNK, 300)]
    with streaming(session) as (made, server, came, client):
        assert client.follow(offered(made))
        got: list[bytes] = []
        for data in items:
            server.give(NEWCOMER, data)
            total(made, numbers(2, 50_000))
        assert soon(WAIT, lambda: bool(got.extend(client.items()) or got == items))
        assert soon(WAIT, lambda: server.arrived(NEWCOMER) == len(items))
        assert client.size == sum(map(len, items))
        assert came.generation == 0, "no view was made for it"


def test_what_waits_in_a_stream_that_is_withdrawn_is_not_sent_any_more(session: Any) -> None:
    """Else the state, which the newcomer gets while all stand still, would wait behind old updates."""
    with streaming(session) as (made, server, _, client):
        for _ in range(3):
            server.give(NEWCOMER, bytes(1 << 20))  # waits: the newcomer does not know yet who sends
        server.withdraw(NEWCOMER, b"refused")
        assert client.follow(offered(made))
        got: list[bytes] = []
        assert soon(WAIT, lambda: bool(got.extend(client.items()) or got))
        assert got == [b"refused"]
        assert soon(WAIT, lambda: made[0].link(5).idle)
        assert client.size == len(b"refused")
