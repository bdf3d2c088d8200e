"""When events are due: times, steps, ends and chance, without a network."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import specs

from shoal.lab.load import parse_lab
from shoal.lab.spec import LabSpec
from shoal.lab.timeline import AppliedEvent, EventTimeline


def lab(*events: str) -> LabSpec:
    return parse_lab("hosts = 3\nrate = '10mbit'\n" + "".join(f"[[event]]\n{event}\n" for event in events))


def words(timeline: EventTimeline, second: float, step: int = 0) -> list[str]:
    return [str(due.action) for due in timeline.due(second, step)]


def test_events_come_once_and_in_the_order_of_time() -> None:
    timeline = EventTimeline(lab("at = '2s'\nrestore = 1", "at = '1s'\ncut = 1", "at = '9s'\nheal = true"))
    assert words(timeline, 0.5) == []
    assert timeline.next_second == 1
    assert words(timeline, 5) == ["cut host 1", "restore host 1"]
    assert words(timeline, 5) == []
    assert not timeline.done
    assert words(timeline, 9) == ["heal"]
    assert timeline.done


def test_steps() -> None:
    timeline = EventTimeline(lab("at = 'step 20'\nkill = 2"))
    assert words(timeline, 1e6, 19) == []
    assert timeline.next_second is None
    assert words(timeline, 1e6, 21) == ["kill host 2"]


@pytest.mark.parametrize(
    ("event", "begins", "ends"),
    [
        ("cut = 1", "cut host 1", "restore host 1"),
        ("freeze = [0, 1]", "freeze hosts 0, 1", "thaw hosts 0, 1"),
        ("host = 1\nrate = '5mbit'", "host 1: rate 5mbit", "host 1: rate 10mbit"),
        ("host = 1\nflip = 0.1", "flip 10% of frames of host 1", "flip 0% of frames of host 1"),
        ("cut_from = 0\ncut_to = 1", "cut the way from host 0 to host 1", "restore the way from host 0 to host 1"),
        ("partition = [[0]]", "partition 0", "heal"),
    ],
)
def test_what_lasts_is_undone(event: str, begins: str, ends: str) -> None:
    timeline = EventTimeline(lab(f"at = '1s'\nfor = '2s'\n{event}"))
    assert words(timeline, 1) == [begins]
    assert words(timeline, 2.9) == []
    assert words(timeline, 3.1) == [ends]
    assert timeline.done


def test_after_a_step_the_end_counts_from_when_the_step_came() -> None:
    timeline = EventTimeline(lab("at = 'step 5'\ncut = 0\nfor = '2s'"))
    assert words(timeline, 7, 5) == ["cut host 0"]
    assert timeline.next_second == 9
    assert words(timeline, 9, 5) == ["restore host 0"]


def test_chance_is_decided_by_the_seed() -> None:
    spec = lab(*["at = '1s'\ncut = 1\nchance = 0.5"] * 200)
    counts = {seed: len(EventTimeline(spec, seed).due(1, 0)) for seed in range(3)}
    assert all(60 < count < 140 for count in counts.values())
    assert counts == {seed: len(EventTimeline(spec, seed).due(1, 0)) for seed in range(3)}


def test_the_record_of_an_event() -> None:
    due = EventTimeline(lab("at = 'step 3'\ncut = 1")).due(1.25, 4)[0]
    applied = due.applied(1.25, 4)
    assert applied == AppliedEvent("cut host 1", "step 3", 1.25, 4)
    assert msgspec.json.decode(msgspec.json.encode(applied), type=AppliedEvent) == applied


@settings(max_examples=60, deadline=None)
@given(specs(), st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10**9)), max_size=5).map(sorted))
def test_the_same_moments_give_the_same_events(spec: LabSpec, moments: list[tuple[float, int]]) -> None:
    first, second = EventTimeline(spec), EventTimeline(spec)
    assert [first.due(*moment) for moment in moments] == [second.due(*moment) for moment in moments]
