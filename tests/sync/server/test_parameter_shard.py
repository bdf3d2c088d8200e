"""A shard under random schedules: conservation, exactly once, the bound, liveness, replay; then its refusals."""

import random

import numpy as np
import pytest
from shard_schedules import SIZE, ShardSchedule

from shoal.core.errors import PayloadError, UsageError
from shoal.sync.server.rules.add import AddRule
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.rules.table import RULES, make_rule
from shoal.sync.server.shard import MOST_REFUSED, ParameterShard
from shoal.sync.server.shard_state import PushOutcome, ShardUpdate
from shoal.sync.trained import TrainedSamples

BOUNDS = (0, 1, 3, None)
SCHEDULES = 300
"""Of each bound."""


def whole_numbers(member: str, clock: int, values: FloatArray) -> FloatArray:
    """A function of the step alone, so that the sum of all can be computed elsewhere; float32 holds it exactly."""
    source = random.Random(f"{member} {clock}")
    return np.array([source.randint(-1000, 1000) for _ in range(SIZE)], np.float32)


def toward_zero(member: str, clock: int, values: FloatArray) -> FloatArray:
    """A gradient at the values that were read."""
    return values * np.float32(0.3) + whole_numbers(member, clock, values) * np.float32(0.001)


def check_schedule(seed: int, bound: int | None) -> None:
    schedule = ShardSchedule(seed, AddRule(), bound, whole_numbers).run()
    shard = schedule.shard
    # parameters = start + the sum of what was acknowledged, each once: nothing is lost, nothing comes twice
    keys = [(update.member, update.clock) for update in schedule.counted]
    assert len(set(keys)) == len(keys)
    held = {id(update) for updates in shard.state.held.values() for update in updates.values()}
    applied = [update for update in schedule.counted if id(update) not in held]
    total = schedule.start.astype(np.int64) + sum(update.values.astype(np.int64) for update in applied)
    assert np.array_equal(shard.state.values, total)
    # everybody who was not lost came to its end, and all its steps count
    for member in schedule.members:
        assert member.killed or (member.done and len(member.counted) == member.steps)
        clocks = [read.clock for read in member.reads]
        assert clocks == list(range(member.first, member.first + len(clocks)))
        # versions never fall, and a member reads its own writes
        assert [read.version for read in member.reads] == sorted(read.version for read in member.reads)
    assert bound is None or schedule.widest <= bound
    assert not shard.waiting
    again = schedule.replayed()
    assert np.array_equal(again.state.values, shard.state.values)
    assert again.state.version == shard.state.version
    assert again.state.clocks == shard.state.clocks


def check_schedules(count: int, bound: int | None, first: int = 0) -> None:
    for seed in range(first, first + count):
        check_schedule(seed, bound)


@pytest.mark.parametrize("bound", BOUNDS)
def test_random_schedules_keep_every_promise(bound: int | None) -> None:
    check_schedules(SCHEDULES, bound)


@pytest.mark.soak("simulator")
@pytest.mark.parametrize("bound", BOUNDS)
def test_many_random_schedules_keep_every_promise(bound: int | None) -> None:
    check_schedules(2500, bound, first=SCHEDULES)


@pytest.mark.parametrize("name", [name for name in RULES if name != "mean"])
@pytest.mark.parametrize("bound", [0, 2, None])
def test_replaying_the_journal_gives_the_bits_of_every_rule(name: str, bound: int | None) -> None:
    settings = {} if name == "add" else {"rate": 0.05}
    for seed in range(10):
        schedule = ShardSchedule(seed, make_rule(name, **settings), bound, toward_zero, adaptive=seed % 2 == 0).run()
        again = schedule.replayed()
        assert np.array_equal(again.state.values, schedule.shard.state.values)
        for ours, theirs in zip(again.state.slots, schedule.shard.state.slots, strict=True):
            assert np.array_equal(ours, theirs)


def test_an_update_counts_the_less_the_more_others_have_added_meanwhile() -> None:
    shard = one_shard(None, ("a", "b", "c"))
    for clock in range(3):
        for member in ("b", "c"):
            shard.push(ShardUpdate(member, clock, numbers(0, 0, 0)))
    shard.push(ShardUpdate("a", 0, numbers(3, 6, 9), version=0))
    assert shard.state.values.tolist() == [1, 2, 3]
    shard.push(ShardUpdate("a", 1, numbers(3, 6, 9), version=6))
    assert shard.state.values.tolist() == [4, 8, 12]


class BrokenShard(ParameterShard):
    """Broken on purpose, in one of three ways."""

    fault = ""

    def push(self, update: ShardUpdate) -> PushOutcome:
        clocks = self.state.clocks
        if self.fault == "twice" and update.clock < clocks.get(update.member, 0):
            self.state.values += update.values
        return super().push(update)

    def _is_ready(self, member: str, clock: int) -> bool:
        return True if self.fault == "unbounded" else super()._is_ready(member, clock)

    def change_view(self, members: object) -> None:
        if self.fault != "waits for the dead":
            super().change_view(members)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["twice", "unbounded", "waits for the dead"])
def test_the_schedules_find_a_broken_shard(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokenShard, "fault", fault)
    monkeypatch.setattr("shard_schedules.ParameterShard", BrokenShard)
    with pytest.raises((AssertionError, KeyError)):
        check_schedules(50, 1)


def one_shard(bound: int | None = 1, members: tuple[str, ...] = ("a", "b"), name: str = "add") -> ParameterShard:
    return ParameterShard(np.zeros(3, np.float32), make_rule(name), members, bound)


def numbers(*values: float) -> FloatArray:
    return np.array(values, np.float32)


def test_with_bound_0_the_bits_do_not_depend_on_who_came_first() -> None:
    updates = [ShardUpdate(name, 0, numbers(0.1, 1e7, 3e-5) * np.float32(weight)) for weight, name in enumerate("abcd")]
    results = []
    for seed in range(24):
        shard = one_shard(0, tuple("abcd"))
        for update in random.Random(seed).sample(updates, len(updates)):
            shard.push(update)
        results.append(shard.state.values.tobytes())
    assert len(set(results)) == 1


def test_a_round_is_the_mean_by_weight_and_nobody_sees_half_of_it() -> None:
    shard = one_shard(0, name="mean")
    shard.push(ShardUpdate("a", 0, numbers(1, 2, 3), weight=3.0))
    assert shard.pull("a", 1) is None
    assert shard.waiting == {"a": ["b"]}
    assert not shard.state.values.any()
    shard.push(ShardUpdate("b", 0, numbers(5, 6, 7), weight=1.0))
    (found,) = shard.release()
    assert (found.member, found.clock, found.minimum) == ("a", 1, 1)
    assert found.values.tolist() == [2, 3, 4]


def test_a_push_of_a_lost_member_counts_in_its_round_if_it_was_acknowledged() -> None:
    shard = one_shard(0)
    assert shard.push(ShardUpdate("b", 0, numbers(1, 1, 1))) is PushOutcome.APPLIED
    shard.push(ShardUpdate("a", 0, numbers(2, 2, 2)))
    shard.push(ShardUpdate("b", 1, numbers(4, 4, 4)))
    shard.change_view(["a"])
    assert shard.push(ShardUpdate("b", 2, numbers(8, 8, 8))) is PushOutcome.LATE
    shard.push(ShardUpdate("a", 1, numbers(16, 16, 16)))
    assert shard.state.values.tolist() == [23, 23, 23]


def test_a_member_that_stays_is_released_when_the_slow_one_is_lost() -> None:
    shard = one_shard(bound=1)
    for clock in range(2):
        shard.push(ShardUpdate("a", clock, numbers(1, 1, 1)))
    assert shard.pull("a", 2) is None
    shard.change_view(["a"])
    assert [found.clock for found in shard.release()] == [2]


def test_a_newcomer_begins_at_the_clock_of_the_slowest_that_stays() -> None:
    shard = one_shard(bound=3)
    for clock in range(3):
        shard.push(ShardUpdate("a", clock, numbers(1, 1, 1)))
    shard.change_view(["a", "c"])
    assert shard.state.clocks == {"a": 3, "c": 3}


def test_three_pushes_in_a_row_that_are_not_finite_quarantine_their_member() -> None:
    shard = one_shard(bound=1)
    bad = numbers(1, np.nan, 2)
    outcomes = [shard.push(ShardUpdate("a", clock, bad)) for clock in range(MOST_REFUSED - 1)]
    outcomes.append(shard.push(ShardUpdate("a", 2, numbers(1, 1, 1))))
    outcomes += [shard.push(ShardUpdate("a", 3 + more, bad)) for more in range(MOST_REFUSED)]
    refused, applied, out = PushOutcome.REFUSED, PushOutcome.APPLIED, PushOutcome.QUARANTINED
    assert outcomes == [refused, refused, applied, refused, refused, out]
    assert shard.push(ShardUpdate("a", 9, numbers(1, 1, 1))) is out
    assert shard.state.values.tolist() == [1, 1, 1]
    shard.change_view(["a", "b"])
    assert set(shard.state.clocks) == {"b"}


@pytest.mark.parametrize("values", [[np.inf, -np.inf, 0], [np.inf, 0, 0], [0, 0, np.nan]])
def test_a_push_that_is_not_finite_is_refused(values: list[float]) -> None:
    shard = one_shard(0)
    assert shard.push(ShardUpdate("a", 0, numbers(*values))) is PushOutcome.REFUSED
    shard.push(ShardUpdate("b", 0, numbers(1, 2, 3)))
    assert shard.state.values.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("update", "complaint"),
    [
        (ShardUpdate("a", 2, numbers(1, 2, 3)), "a pushes step 2 where 0 comes next"),
        (ShardUpdate("a", 0, numbers(1, 2)), "of shape (2,) to a shard of 3"),
        (ShardUpdate("a", 0, np.zeros(3)), "float64"),  # type: ignore[arg-type]
        (ShardUpdate("a", 0, numbers(1, 2, 3), weight=-1.0), "weight -1.0"),
        (ShardUpdate("a", 0, numbers(1, 2, 3), weight=float("nan")), "weight nan"),
        (ShardUpdate("a", 0, numbers(1, 2, 3), version=1), "a has seen 1 updates, and there are 0"),
        (ShardUpdate("a", 0, numbers(1, 2, 3), trained=(TrainedSamples((0, 0, 0), [(4, 4)]),)), "empty or negative"),
    ],
)
def test_what_no_honest_member_sends_is_an_error_and_changes_nothing(update: ShardUpdate, complaint: str) -> None:
    shard = one_shard()
    with pytest.raises(PayloadError) as error:
        shard.push(update)
    assert complaint in str(error.value)
    assert shard.state.clocks["a"] == shard.state.version == 0


def test_a_state_can_be_copied_and_goes_on_by_itself() -> None:
    shard = one_shard(0, name="add")
    shard.push(ShardUpdate("a", 0, numbers(1, 2, 3)))
    other = one_shard(0, name="add")
    other.state = shard.state.copy()
    for each in (shard, other):
        each.push(ShardUpdate("b", 0, numbers(1, 1, 1)))
    assert shard.state.values.tolist() == other.state.values.tolist() == [2, 3, 4]


def test_shards_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="bound of -1"):
        one_shard(-1)
    with pytest.raises(UsageError, match="MeanRule with bound 2"):
        one_shard(2, name="mean")
    with pytest.raises(UsageError, match="flat float32"):
        ParameterShard(np.zeros((2, 2), np.float32), AddRule(), ["a"], 0)
