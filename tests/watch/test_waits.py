"""Naming who is waited for: not in every step, not again and again, and the right one."""

from shoal.watch.live import WorkerRow
from shoal.watch.waits import LEAST, WaitTotals


def row(rank: int, state: str, since: float, step: int = 418) -> WorkerRow:
    return WorkerRow(rank, step, 0, 0.0, 0, 0, state, 70 + rank, since)


def test_the_missing_one_is_named_with_what_it_was_doing() -> None:
    said = WaitTotals().look([row(0, "exchanging", 3.2), row(1, "computing", 3.4), row(2, "exchanging", 3.1)])
    assert said == "waiting 3.2 s for worker 1 (pid 71), last seen computing in step 418"


def test_a_wait_as_in_every_step_is_not_worth_a_line() -> None:
    waits = WaitTotals()
    assert waits.look([row(0, "exchanging", LEAST - 0.1), row(1, "computing", 60.0)]) is None
    assert waits.look([row(0, "exchanging", 60.0), row(1, "exchanging", 60.0)]) is None, (
        "a slow network, nobody's fault"
    )


def test_it_is_said_again_only_when_it_has_doubled() -> None:
    waits = WaitTotals()
    heard = [waits.look([row(0, "exchanging", t), row(1, "computing", t)]) for t in (3.0, 4.0, 5.9, 6.0, 11.0, 12.0)]
    assert [said is not None for said in heard] == [True, False, False, True, False, True]


def test_what_is_usual_in_this_run_is_not_unusual() -> None:
    waits = WaitTotals()
    for _ in range(3):  # steps in which one takes two seconds longer
        waits.look([row(0, "exchanging", 2.0), row(1, "computing", 2.0)])
        assert waits.look([row(0, "computing", 0.1), row(1, "computing", 0.1)]) is None
    assert waits.look([row(0, "exchanging", 7.0), row(1, "computing", 7.0)]) is None
    assert waits.look([row(0, "exchanging", 8.0), row(1, "computing", 8.0)]) is not None
