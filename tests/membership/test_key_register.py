"""Who may speak for whom: an id belongs to its key, and a key to as many members as it may have (A3)."""

from shoal.membership.key_register import KeyBound, KeyRegister
from shoal.membership.protocol import Heartbeat, JoinRequest, ProcessExited, Report
from shoal.membership.view import MOST_MEMBERS

ONE, TWO = "1" * 40, "2" * 40


def register() -> KeyRegister:
    return KeyRegister({ONE.encode(): 1, TWO.encode(): 2})


def beat(member: str) -> Report:
    return Heartbeat(member=member, generation=0, promised=0, applied=0)


def test_a_key_lets_in_as_many_as_it_may_have_at_a_time() -> None:
    here = register()
    assert not here.objection(JoinRequest(member="a"), ONE, (), 0)
    assert here.binds(JoinRequest(member="a"), ONE) == KeyBound(member="a", key=ONE)
    assert here.objection(JoinRequest(member="b"), ONE, ("a",), 1) == "1 of 1 members live under this key already"
    assert not here.objection(JoinRequest(member="b"), ONE, (), 0), "the first is lost, so another may come"
    assert not here.objection(JoinRequest(member="c"), TWO, ("a",), 1)


def test_an_id_belongs_to_the_key_it_came_with() -> None:
    here = register()
    here.add(KeyBound(member="a", key=ONE))
    assert not here.objection(beat("a"), ONE, ("a",), 1)
    assert "launcher" in here.objection(ProcessExited(member="a", reason="x"), ONE, ("a",), 1)
    for report in (beat("a"), JoinRequest(member="a")):
        assert "belongs to another key" in here.objection(report, TWO, ("a",), 1)


def test_reports_before_the_join_request_are_ignored() -> None:
    assert "has not asked to join" in register().objection(beat("z"), ONE, (), 0)


def test_on_one_host_there_are_no_keys_but_only_a_launcher_reports_deaths() -> None:
    here = KeyRegister(None)
    assert not here.objection(beat("a"), "", (), 0)
    assert here.binds(JoinRequest(member="a"), "") is None
    assert here.objection(ProcessExited(member="a", reason="x"), "", ("a",), 1)


def test_there_is_a_most() -> None:
    assert KeyRegister(None).objection(JoinRequest(member="a"), "", (), MOST_MEMBERS)
