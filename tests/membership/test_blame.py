"""Whom a worker may have evicted, and what becomes of the operation under way."""

import pytest

from shoal.core.errors import PayloadError, ViewEnded
from shoal.hosts.status_board import StatusBoard
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.protocol import InstallView, MemberInfo
from shoal.membership.view import MembershipView

VIEW = MembershipView(3, ("w0.1", "w1.1", "w2.1"))
ERROR = PayloadError("row 9 of 5")


@pytest.fixture
def session() -> ElasticSession:
    """In a view of which the last member is remote; whoever is accused is soon evicted."""
    made = ElasticSession("w0.1", "ipc:///nowhere", "run", StatusBoard.private(), 5.0)
    made.agent._orders.installed = InstallView(
        view=VIEW, through=0, infos=(MemberInfo(), MemberInfo(), MemberInfo(remote=True))
    )
    made.agent._member.view = made.view = VIEW
    made.agent.disturbed = False
    accuse = made.agent.reports.accuse

    def evict(member: str, reason: str, late: bool = False) -> None:
        accuse(member, reason, late)
        made.agent.disturbed = True

    made.agent.reports.accuse = evict  # type: ignore[method-assign]
    return made


def test_a_remote_worker_that_breaks_the_protocol_ends_the_view_and_not_the_run(session: ElasticSession) -> None:
    with pytest.raises(ViewEnded, match="row 9"):
        session.blame("w2.1", ERROR)
    assert session.agent.reports.accusations["w2.1"].reason == "row 9 of 5"


def test_an_error_of_the_runs_own_worker_is_an_error(session: ElasticSession) -> None:
    with pytest.raises(PayloadError):
        session.blame("w1.1", ERROR)
    with pytest.raises(PayloadError):
        session.distrust("w1.1", ERROR)
    assert not session.agent.reports.accusations


def test_where_the_operation_is_complete_the_run_goes_on_and_waits_for_the_eviction(session: ElasticSession) -> None:
    session.distrust("w2.1", ERROR)
    session._await_eviction()
    assert session.agent.disturbed


def test_what_a_peer_sent_is_quoted_on_one_line(session: ElasticSession) -> None:
    session.distrust("w2.1", PayloadError("\x1b[2J" + "x" * 500))
    said = session.agent.reports.accusations["w2.1"].reason
    assert said.startswith("?[2Jx")
    assert len(said) == 240
