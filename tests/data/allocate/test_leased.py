"""Leased samples: exactly once a pass, whatever the speeds, losses, restarts and look-ahead; the fast take more."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_world import LeaseWorld

from shoal.data.allocate.leased import LeaseTerms

SECONDS = st.lists(st.sampled_from([0.1, 1.0, 1.3, 4.0]), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(
    items=st.integers(0, 120),
    batch=st.integers(1, 9),
    steps=st.integers(1, 6),
    drop_last=st.booleans(),
    seconds=SECONDS,
    ahead=st.integers(0, 3),
    losses=st.dictionaries(st.floats(0, 60), st.integers(0, 4), max_size=3),
    restarts=st.lists(st.floats(0, 60), max_size=2),
    remote=st.integers(0, 4),
    fastest=st.booleans(),
)
def test_every_sample_counts_exactly_once(
    items, batch, steps, drop_last, seconds, ahead, losses, restarts, remote, fastest
):
    terms = LeaseTerms((0, 0, 0), items, batch, steps, drop_last, fastest)
    world = LeaseWorld(terms, seconds, ahead, losses, restarts, remote)
    world.run()
    assert all(times == 1 for times in world.counted.values())
    missing = items - len(world.counted)
    assert missing == 0 or (drop_last and missing < batch)


def test_a_slow_worker_costs_less_than_a_tenth_of_the_summed_capacity():
    seconds = [1.0, 1.0, 1.0, 4.0]
    world = LeaseWorld(LeaseTerms((0, 0, 0), items=16 * 4 * 10 * 8, batch=8, steps=16), seconds)
    world.run()
    capacity = sum(1 / each for each in seconds)
    batches = sum(world.made.values())
    assert world.rounds == 10
    assert batches / world.now >= 0.9 * capacity
    assert world.made["w3.0"] < world.made["w0.0"] / 3


def test_rounds_have_the_same_number_of_batches_whoever_trains_them():
    world = LeaseWorld(LeaseTerms((0, 0, 0), items=6 * 2 * 3, batch=1, steps=6), [1.0, 5.0])
    world.run()
    assert world.rounds == 3


@pytest.mark.parametrize("ahead", [0, 3])
def test_absp_an_epoch_with_a_slow_worker_takes_less_than_half_of_bsp(ahead):
    """A-BSP: a round ends when the fastest has made its 16 steps; the slow one makes 4 or 5 of them."""
    seconds, batches = [1.0, 1.0, 1.0, 4.0], 512
    world = LeaseWorld(LeaseTerms((0, 0, 0), items=batches * 8, batch=8, steps=16, fastest=True), seconds, ahead)
    world.run()
    assert sorted(world.counted) == list(range(batches * 8))
    assert set(world.counted.values()) == {1}
    bsp = batches / 4 * max(seconds)
    assert world.now <= 0.5 * bsp
    assert world.made["w0.0"] <= 16 * world.rounds


def test_absp_what_a_slow_worker_has_not_begun_is_given_first():
    world = LeaseWorld(LeaseTerms((0, 0, 0), items=24, batch=1, steps=4, fastest=True), [1.0, 30.0], ahead=2)
    world.run()
    assert sorted(world.counted) == list(range(24))
    counted, gaps = set(), []
    for now, after in pairwise(world.counted_in):
        counted |= now
        gaps.append({*range(max(now))} - counted)
        assert gaps[-1] <= after, world.counted_in
    assert any(gaps)


def test_what_a_lost_worker_had_is_trained_by_the_others():
    world = LeaseWorld(LeaseTerms((0, 0, 0), items=100, batch=5, steps=4), [1.0, 1.0], losses={3.5: 1})
    world.run()
    assert sorted(world.counted) == list(range(100))
    assert world.made == {"w0.0": 20}
