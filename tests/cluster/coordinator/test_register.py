"""Who may speak for whom: an id belongs to its key, and a key to as many members as it may have (A3)."""

from shoal.cluster.coordinator.register import Bound, Register
from shoal.cluster.membership.messages import Beat, Gone, Hello, Report
from shoal.cluster.membership.view import MOST_MEMBERS

ONE, TWO = "1" * 40, "2" * 40


def register() -> Register:
    return Register({ONE.encode(): 1, TWO.encode(): 2})


def beat(member: str) -> Report:
    return Beat(member=member, epoch=0, promised=0, applied=0)


def test_a_key_lets_in_as_many_as_it_may_have_at_a_time() -> None:
    here = register()
    assert not here.objection(Hello(member="a"), ONE, (), 0)
    assert here.binds(Hello(member="a"), ONE) == Bound(member="a", key=ONE)
    assert here.objection(Hello(member="b"), ONE, ("a",), 1) == "1 of 1 members live under this key already"
    assert not here.objection(Hello(member="b"), ONE, (), 0), "the first is lost, so another may come"
    assert not here.objection(Hello(member="c"), TWO, ("a",), 1)


def test_an_id_belongs_to_the_key_it_came_with() -> None:
    here = register()
    here.add(Bound(member="a", key=ONE))
    assert not here.objection(beat("a"), ONE, ("a",), 1)
    assert "launcher" in here.objection(Gone(member="a", reason="x"), ONE, ("a",), 1)
    for report in (beat("a"), Hello(member="a")):
        assert "belongs to another key" in here.objection(report, TWO, ("a",), 1)


def test_who_has_not_said_hello_is_not_heard() -> None:
    assert "has not said Hello" in register().objection(beat("z"), ONE, (), 0)


def test_on_one_host_there_are_no_keys_but_only_a_launcher_reports_deaths() -> None:
    here = Register(None)
    assert not here.objection(beat("a"), "", (), 0)
    assert here.binds(Hello(member="a"), "") is None
    assert here.objection(Gone(member="a", reason="x"), "", ("a",), 1)


def test_there_is_a_most() -> None:
    assert Register(None).objection(Hello(member="a"), "", (), MOST_MEMBERS)
