"""Doubts: who is given up when members no longer hear each other, and who is not."""

from shoal.cluster.membership.doubts import BEATS, HOLD, LASTS, PERSISTS, Doubts
from shoal.cluster.membership.messages import Doubt, Plate
from shoal.cluster.membership.view import View

VIEW = View(3, ("a", "b", "c"))
HEARD = {"a": 100.0, "b": 100.0, "c": 100.0}


def said(*pairs: tuple[str, str], closed: bool = False, until: float = PERSISTS) -> Doubts:
    """Said again every quarter of a second, up to `until` seconds after the first time."""
    doubts, at = Doubts(), 0.0
    while at <= until:
        for by, of in pairs:
            doubts.hear(Doubt(member=by, of=of, closed=closed), 100.0 + at)
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
        "nobody listens at its door, says a",
    )


def test_those_outside_the_view_neither_doubt_nor_are_doubted() -> None:
    doubts = said(("x", "b"), ("a", "x"))
    assert doubts.verdict(VIEW, HEARD, 100.0 + PERSISTS) is None


def test_a_new_view_begins_without_doubts() -> None:
    doubts = said(("a", "b"))
    doubts.clear()
    assert doubts.verdict(VIEW, HEARD, 100.0 + PERSISTS) is None


def test_its_address_is_kept_out_for_a_while_and_longer_every_time() -> None:
    doubts, here, there = Doubts(), Plate("tcp://10.0.0.3:7001"), Plate("tcp://10.0.0.4:7001")
    doubts.given_up(here, 100.0)
    again = Plate("tcp://10.0.0.3:9999")
    assert doubts.kept_out(again, 99.0 + HOLD)
    assert not doubts.kept_out(again, 101.0 + HOLD)
    assert not doubts.kept_out(there, 101.0)
    doubts.given_up(again, 200.0)
    assert doubts.kept_out(here, 199.0 + 2 * HOLD)
