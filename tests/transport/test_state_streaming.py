"""A newcomer that asks for the state and never takes it: what waits for it is bounded, and given back."""

from types import SimpleNamespace
from typing import Any

import pytest
from meshes import meshes

from shoal.groups import state_streaming
from shoal.groups.state_streaming import StateStreamServer
from shoal.membership.member import StreamingPartners
from shoal.membership.protocol import MemberInfo, StreamStateTo
from shoal.membership.view import MembershipView
from shoal.transport.keys import CurveKeyPair

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
        mesh, desk = made[0], StateStreamServer(made[0], session)
        assert desk.asked() == [NEWCOMER]
        desk.open(NEWCOMER)
        desk.give(NEWCOMER, bytes(1 << 20))
        mesh._command(lambda: None)  # what was handed in before is in the queue now
        assert mesh.link(5).out.waiting, "it waits for a peer that never comes"
        assert not desk.stalled(NEWCOMER)
        monkeypatch.setattr(state_streaming, "STALLED", -1.0)
        assert desk.stalled(NEWCOMER)
        desk.drop(NEWCOMER)
        assert 5 not in mesh.loop.peers
        assert sorted(mesh.loop.book) == [0, 1], "members stay"
        assert desk.serves(NEWCOMER), "it is known, so that it is not begun again"


def test_who_asks_again_after_a_silence_does_not_add_to_what_waits(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with meshes(2) as made:
        desk = StateStreamServer(made[0], session)
        asked = session.agent.streaming_partners.asked[NEWCOMER]
        for _ in range(3):
            session.agent.streaming_partners.asked[NEWCOMER] = asked
            desk.open(NEWCOMER)
            desk.give(NEWCOMER, bytes(1 << 20))
            made[0]._command(lambda: None)  # what was handed in before is in the queue now
            assert len(made[0].link(5).out.waiting) == 18, "one state"
            monkeypatch.setattr(state_streaming, "FORGOTTEN", -1.0)
            assert desk.asked() == []
            assert 5 not in made[0].loop.peers
            monkeypatch.undo()
