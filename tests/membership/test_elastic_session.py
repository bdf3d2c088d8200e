"""A session whose view changes, without a coordinator: what it tells when."""

from pathlib import Path

from shoal.hosts.status_board import StatusBoard
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.listener import OperationTransport


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
