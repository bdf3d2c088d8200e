"""Merged events give a reader the same totals, means and order of what matters."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.events import (
    CheckpointSaved,
    GuardChecked,
    LayerTimes,
    ResultsReported,
    StepFinished,
    TrafficCounted,
    ValuesLogged,
    WarningRaised,
    WorkerEnded,
    WorkerStarted,
)
from shoal.core.merging import merge_logged, merged, split_step

PHASES = {"load": 0.1, "forward_backward": 0.2, "exchange_wait": 0.3, "encode": 0.4, "update": 0.5}
START = WorkerStarted(at=0.0, rank=0, size=1, host="h", pid=1, threads=1, device="cpu")


def step(number: int, epoch: int = 0, **more: float) -> StepFinished:
    return StepFinished(
        at=float(number), step=number, epoch=epoch, samples=8, seconds=1.5, sent=9, **{**PHASES, **more}
    )


def report(number: int) -> ResultsReported:
    return ResultsReported(at=float(number), step=number, epoch=0, metrics={"accuracy": 0.1 * number})


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 20))
def test_nothing_is_lost_of_any_sum_however_often_it_is_merged(steps: int, epochs: int, width: int) -> None:
    events = [step(n, epoch=n * epochs // steps) for n in range(steps)]
    once = merged(events, width)
    for found in (once, merged(once, 2 * width)):
        made = [event for event in found if isinstance(event, StepFinished)]
        assert sum(event.steps for event in made) == steps
        assert sum(event.samples for event in made) == 8 * steps
        assert sum(event.seconds for event in made) == pytest.approx(1.5 * steps)
        assert sum(event.encode for event in made) == pytest.approx(0.4 * steps)
        assert [event.step for event in made] == sorted(event.step for event in made)
    assert len(once) <= steps // width + 3


def test_blocks_of_several_workers_end_at_the_same_steps() -> None:
    late = merged([step(n) for n in range(21, 64)], 16)
    early = merged([step(n) for n in range(64)], 16)
    assert [event.step for event in late] == [21, 32, 48]
    assert [event.step for event in early] == [0, 16, 32, 48]


def test_a_start_a_report_and_the_first_epoch_keep_the_steps_before_and_after_apart() -> None:
    events = [START, step(0), step(1), step(2, 1), step(3, 2), report(3), step(4, 3), START, step(5, 3)]
    found = merged(events, 1000)
    made = [(e.step, e.steps) if isinstance(e, StepFinished) else e for e in found]
    assert made == [START, (0, 2), (2, 2), report(3), (4, 1), START, (5, 1)]


def test_logged_values_become_means_and_a_loss_that_is_no_number_stays_one() -> None:
    events = [ValuesLogged(at=0.0, step=n, values={"loss": float(n)}) for n in range(8)]
    assert [(e.step, e.steps, e.values["loss"]) for e in merged(events, 4)] == [(0, 4, 1.5), (4, 4, 5.5)]
    assert [e.values["loss"] for e in merged(merged(events, 2), 8)] == [3.5]
    assert math.isnan(merge_logged(events[0], ValuesLogged(at=0.0, step=1, values={"loss": math.nan})).values["loss"])


def test_of_what_is_told_again_and_again_the_newest_stays() -> None:
    def guarded(number: int, action: str) -> GuardChecked:
        return GuardChecked(at=0.0, step=number, cosine=0.9, budget=0.8, steps=1, action=action)

    events = [TrafficCounted(at=0.0, step=n, peers={"1": (n, n)}) for n in range(3)]
    events += [LayerTimes(at=0.0, step=n, samples=n, backward={}, aggregation={}) for n in range(3)]
    assert [e.step for e in merged(events, 16)] == [2, 2]
    guards = [guarded(0, "kept"), guarded(1, "tightened"), guarded(2, "kept"), guarded(3, "kept")]
    assert [e.step for e in merged(guards, 16)] == [1, 3]


def test_words_stay_and_reports_are_thinned_out_last() -> None:
    saved = [CheckpointSaved(at=0.0, step=n, size=1, paused=0.0, seconds=0.0, work=0.0) for n in range(4)]
    words = [WarningRaised(at=0.0, text="one"), WorkerEnded(at=0.0, exit="done")]
    events = [*words, *(report(n) for n in range(4)), *saved]
    assert merged(events, 16) == events
    assert merged(events, 16, thin=True) == [*words, report(1), report(3), saved[1], saved[3]]


def test_some_of_several_steps_have_their_share() -> None:
    (whole,) = merged([step(n) for n in range(10)], 100)
    part = split_step(whole, 4)
    assert (part.step, part.steps, part.samples, part.sent) == (0, 4, 32, 36)
    assert part.seconds == pytest.approx(6.0)
