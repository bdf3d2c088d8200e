"""A session whose view changes, without a coordinator: what it tells when."""

from pathlib import Path

from shoal.core.clock import now
from shoal.hosts.status_board import StatusBoard
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.listener import OperationTransport
from shoal.membership.protocol import InstallView, LeaseRenewal, ProposeView
from shoal.membership.view import MembershipView


def test_the_others_are_told_early_only_if_all_is_here_and_nothing_comes_between(tmp_path: Path) -> None:
    session = ElasticSession("w0.0", f"ipc://{tmp_path}/nobody", "run", StatusBoard.private(), 1.0)
    whole, told = [False], []

    class Transport(OperationTransport):
        def announce_result(self) -> None:
            told.append(None)

    session._holds = lambda: whole[0]
    session.attach(Transport())
    for completing, whole[0], wanted in [(False, True, 0), (True, False, 0), (True, True, 1)]:
        session.expect_complete(completing)
        session.arrived()
        assert len(told) == wanted


def test_who_shares_out_samples_does_not_change_while_steps_are_made_beside_an_operation(tmp_path: Path) -> None:
    """A view ends, and the agent counts the operation: members are in different steps, and learn it when it lands."""
    session = ElasticSession("w0.0", f"ipc://{tmp_path}/nobody", "run", StatusBoard.private(), 1.0)
    first, second, third = (MembershipView(n, ("w0.0", "w1.0", "w2.0")[: 4 - n]) for n in (1, 2, 3))
    member = session.agent._member

    def install(view: MembershipView, through: int) -> None:
        """In the agent's thread."""
        member.propose(ProposeView(view=view))
        order = InstallView(view=view, through=through)
        member.install(order)
        session.agent._orders.installed = order

    member.renew(LeaseRenewal(sent=now(), seconds=60.0))
    install(first, 0)
    member.filled(first)
    install(second, 0)
    session.enter(lambda: True)
    assert session.committed_view == first
    install(third, 1)
    assert member.committed_view == second, "the agent counts it"
    assert session.committed_view == first
    assert session.settle(), "it lands"
    assert session.committed_view == second
