"""Doubts: who is given up when members no longer hear each other, and who is not."""

from shoal.membership.protocol import MemberInfo, SuspectMember
from shoal.membership.roster import host_of
from shoal.membership.suspicions import BEATS, HOLD, LASTS, PERSISTS, SuspicionTable
from shoal.membership.view import MembershipView

VIEW = MembershipView(3, ("a", "b", "c"))
HEARD = {"a": 100.0, "b": 100.0, "c": 100.0}


def said(*pairs: tuple[str, str], closed: bool = False, until: float = PERSISTS) -> SuspicionTable:
    """Said again every quarter of a second, up to `until` seconds after the first time."""
    doubts, at = SuspicionTable(), 0.0
    while at <= until:
        for by, of in pairs:
            doubts.hear(SuspectMember(member=by, of=of, closed=closed), 100.0 + at)
        at += 0.25
    return doubts


def test_a_moment_is_nobodys_loss() -> None:
    assert said(("a", "b"), until=0.0).verdict(VIEW, HEARD, 100.0) is None


def test_whom_most_doubt_is_given_up() -> None:
    doubts = said(("a", "b"), ("c", "b"), ("b", "a"), ("b", "c"))
    assert doubts.verdict(VIEW, HEARD, 100.0 + PERSISTS) == ("b", "no longer heard by a, c")


def test_of_two_that_doubt_each_other_the_later_goes() -> None:
    assert said(("a", "c"), ("c", "a")).verdict(VIEW, HEARD, 100.0 + PERSISTS) == ("c", "no longer heard by a")


def test_a_doubt_that_is_not_said_again_is_over() -> None:
    assert said(("a", "b")).verdict(VIEW, HEARD, 100.1 + PERSISTS + LASTS) is None


def test_a_closed_door_counts_once_the_coordinator_misses_beats_too() -> None:
    doubts = said(("a", "b"), closed=True, until=0.0)
    assert doubts.verdict(VIEW, HEARD, 100.0) is None
    assert said(("a", "b"), closed=True).verdict(VIEW, HEARD, 100.1 + BEATS) == (
        "b",
        "nobody listens at its endpoint, says a",
    )


def test_those_outside_the_view_neither_doubt_nor_are_doubted() -> None:
    doubts = said(("x", "b"), ("a", "x"))
    assert doubts.verdict(VIEW, HEARD, 100.0 + PERSISTS) is None


def test_a_new_view_begins_without_doubts() -> None:
    doubts = said(("a", "b"))
    doubts.clear()
    assert doubts.verdict(VIEW, HEARD, 100.0 + PERSISTS) is None


def test_its_machine_is_kept_out_for_a_while_and_longer_every_time() -> None:
    doubts, here, there = (
        SuspicionTable(),
        host_of(MemberInfo("tcp://10.0.0.3:7001")),
        host_of(MemberInfo("tcp://10.0.0.4:7001")),
    )
    doubts.given_up(here, 100.0)
    again = host_of(MemberInfo("tcp://10.0.0.3:9999"))
    assert doubts.kept_out(again, 99.0 + HOLD)
    assert not doubts.kept_out(again, 101.0 + HOLD)
    assert not doubts.kept_out(there, 101.0)
    doubts.given_up(again, 200.0)
    assert doubts.kept_out(here, 199.0 + 2 * HOLD)


def test_one_remote_worker_cannot_have_another_one_given_up() -> None:
    verdict = said(("b", "c")).verdict(VIEW, HEARD, 100.0 + PERSISTS, remote={"b", "c"})
    assert verdict == ("b", "it alone does not hear c"), "the word of one is worth its own membership"
    closed = said(("b", "c"), closed=True)
    assert closed.verdict(VIEW, HEARD, 100.1 + BEATS, remote={"b", "c"}) == ("b", "it alone does not hear c")


def test_two_remote_workers_are_believed_of_a_third_if_they_came_with_different_keys() -> None:
    view, pairs = MembershipView(3, ("a", "b", "c", "d")), (("b", "d"), ("c", "d"))
    heard, remote, now = HEARD | {"d": 100.0}, {"b", "c", "d"}, 100.0 + PERSISTS
    assert said(*pairs).verdict(view, heard, now, remote) == ("d", "no longer heard by b, c")
    one = SuspicionTable(owner=lambda member: "key" if member in "bc" else member)
    for at in (0.0, 0.5, 1.0):
        for by, of in pairs:
            one.hear(SuspectMember(member=by, of=of), 100.0 + at)
    assert one.verdict(view, heard, now, remote) == ("b", "it alone does not hear d")


def test_of_two_remote_workers_that_doubt_each_other_the_one_that_has_done_so_before_goes() -> None:
    doubts = said(("b", "c"), ("c", "b"))
    assert doubts.verdict(VIEW, HEARD, 100.0 + PERSISTS, {"b", "c"}) == ("c", "no longer heard by b")
    doubts.clear()
    later = MembershipView(4, ("a", "b", "d"))
    for at in (0.0, 0.5, 1.0):
        for by, of in (("b", "d"), ("d", "b")):
            doubts.hear(SuspectMember(member=by, of=of), 200.0 + at)
    heard = dict.fromkeys(later.members, 201.0)
    assert doubts.verdict(later, heard, 201.0, {"b", "d"}) == ("b", "no longer heard by d")


def test_the_runs_own_worker_is_believed_at_once_of_what_a_remote_one_did() -> None:
    doubts = SuspicionTable()
    doubts.hear(SuspectMember(member="a", of="c", reason="sends piece 9 of 3"), 100.0)
    assert doubts.verdict(VIEW, HEARD, 100.0, {"b", "c"}) == ("c", "sends piece 9 of 3")


def test_whoever_keeps_all_waiting_is_the_last_of_those_that_wait_for_each_other() -> None:
    doubts = SuspicionTable()
    doubts.hear(SuspectMember(member="a", of="b", reason="300 s without its part", late=True), 100.0)
    doubts.hear(SuspectMember(member="b", of="c", reason="299 s without its part", late=True), 100.0)
    assert doubts.verdict(VIEW, HEARD, 100.0, {"b", "c"}) == ("c", "299 s without its part")
    doubts.hear(SuspectMember(member="c", of="b", reason="it is not me", late=True), 100.0)
    assert doubts.verdict(VIEW, HEARD, 100.0, {"b", "c"}) == ("b", "300 s without its part")
