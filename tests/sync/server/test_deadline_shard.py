"""A shard whose steps are taken without the slowest: by number, by time, with what is late, and after losses."""

import random

import numpy as np
import pytest

from shoal.core.errors import PayloadError, UsageError
from shoal.sync.server.deadline_shard import DeadlineShard, StepTimer
from shoal.sync.server.messages import StepDeadline
from shoal.sync.server.rules.add import AddRule
from shoal.sync.server.rules.sgd import SgdRule
from shoal.sync.server.shard_state import JournalEntry, PushOutcome, ShardUpdate
from shoal.sync.trained import TrainedSamples

SIZE = 3


def shard(members: str, backups: int = 1, adds: bool = False, journal: list[JournalEntry] | None = None):
    told = journal if journal is not None else []
    terms = StepDeadline(10.0, backups, adds)
    return DeadlineShard(np.zeros(SIZE, np.float32), AddRule(), list(members), terms, told.append)


def change(member: str, clock: int, value: float = 1.0, weight: float = 1.0) -> ShardUpdate:
    key = (0, 0, 0)
    trained = (TrainedSamples(key, [(clock, clock + 1)]),)
    return ShardUpdate(member, clock, np.full(SIZE, value, np.float32), weight, trained)


def test_a_step_is_taken_with_all_but_the_backups_and_the_late_one_is_dropped() -> None:
    one = shard("abc")
    assert one.push(change("a", 0)) is PushOutcome.APPLIED
    assert one.pull("a", 1) is None
    assert one.waiting == {"a": ["b", "c"]}
    one.push(change("b", 0))
    (values,) = one.release()
    assert (values.member, values.minimum, *values.values) == ("a", 1, 2, 2, 2)
    assert one.push(change("c", 0)) is PushOutcome.DROPPED
    assert one.push(change("c", 0)) is PushOutcome.AGAIN
    assert list(one.state.trained) == ["a", "b"]
    found = one.pull("c", 1)
    assert found is not None
    assert found.values.tolist() == [2, 2, 2]


def test_a_member_that_was_late_skips_to_the_step_that_is_open() -> None:
    one = shard("abc")
    for step in range(5):
        for member in "ab":
            one.push(change(member, step))
    one.push(change("c", 0))
    found = one.pull("c", 1)
    assert found is not None
    assert found.minimum == 5
    with pytest.raises(PayloadError, match="c pushes step 6 where 5 is open"):
        one.push(change("c", 6))
    assert one.push(change("c", 5)) is PushOutcome.APPLIED


def test_shares_that_come_make_up_for_those_that_do_not() -> None:
    """The mean of three of four; sums of losses, whose shares are 1, are those of fewer samples."""
    one = shard("abcd")
    for member, value in zip("abc", (1.0, 2.0, 6.0), strict=True):
        one.push(change(member, 0, value, 0.25))
    assert one.state.values.tolist() == pytest.approx([3, 3, 3])


def test_a_late_push_that_is_added_counts_by_its_share_in_the_step_that_is_open() -> None:
    one = shard("abcd", adds=True)
    for member in "abc":
        one.push(change(member, 0, weight=0.25))
    assert one.push(change("d", 0, 8.0, 0.25)) is PushOutcome.ADDED
    assert one.state.values.tolist() == [1, 1, 1], "nobody sees it before the step is taken"
    for member in ("a", "b", "d"):
        one.push(change(member, 1, weight=0.25))
    assert one.state.values.tolist() == pytest.approx([4, 4, 4])
    one.push(change("c", 1, 4.0, 0.25))
    one.level_clocks()
    assert one.state.values.tolist() == pytest.approx([5, 5, 5]), "what no step has followed counts at the meeting"


def test_a_deadline_takes_what_has_come_and_begins_with_the_first_push() -> None:
    one = shard("abc", backups=0)
    timer = StepTimer(one)
    assert timer.seconds_left(0.0) is None
    one.push(change("a", 0))
    assert timer.seconds_left(100.0) == 10.0
    one.push(change("b", 0))
    assert timer.seconds_left(104.0) == 6.0
    assert timer.seconds_left(109.5) == 0.5
    assert timer.seconds_left(110.0) == 0.0
    one.expire(0)
    assert one.state.values.tolist() == [2, 2, 2]
    assert timer.seconds_left(110.0) is None
    assert one.push(change("c", 0)) is PushOutcome.DROPPED


def test_nobody_waits_for_a_member_that_is_lost_or_has_left_the_round() -> None:
    one = shard("abc", backups=0)
    one.push(change("a", 0))
    one.excuse("b")
    assert one.state.round == 0
    one.change_view(["a", "b"])
    assert one.state.round == 1


def test_a_push_that_is_not_finite_has_come_and_changes_nothing() -> None:
    one = shard("ab", backups=0)
    assert one.push(change("a", 0, float("nan"))) is PushOutcome.REFUSED
    one.push(change("b", 0))
    assert one.state.values.tolist() == [1, 1, 1]


def test_gradients_are_refused() -> None:
    with pytest.raises(UsageError, match="SgdRule with a deadline"):
        DeadlineShard(np.zeros(SIZE, np.float32), SgdRule(0.1), ["a"], StepDeadline(1.0))


@pytest.mark.parametrize("adds", [False, True])
def test_random_schedules_count_each_push_once_or_say_that_it_was_dropped(adds: bool) -> None:
    """Members of random speeds, duplicates, deadlines and losses: the values are the sum of what was said to count, the
    samples of lost ones are those of their pushes that count, and the journal gives the same bits."""
    for seed in range(150):
        chance, journal = random.Random(seed), list[JournalEntry]()
        members = list("abcde"[: chance.randint(1, 5)])
        founders = "".join(members)
        one = shard(founders, chance.randint(0, len(members) - 1), adds, journal)
        clocks, waits = dict.fromkeys(members, 0), set[str]()
        counted, sent, named = 0.0, list[ShardUpdate](), dict[str, list[int]]()
        for _ in range(chance.randint(5, 80)):
            act, who = chance.random(), chance.choice(members)
            if act < 0.05 and one.has_begun:
                one.expire(one.state.round)
            elif act < 0.08 and len(members) > 1:
                members.remove(who)
                one.change_view(members)
            elif act < 0.2 and sent:
                again = chance.choice(sent)
                assert one.push(again) in (PushOutcome.AGAIN, PushOutcome.LATE)
            elif who not in waits:
                update = change(who, clocks[who], float(chance.randint(-9, 9)))
                sent.append(update)
                if one.push(update) is not PushOutcome.DROPPED:
                    counted += float(update.values[0])
                    named.setdefault(who, []).append(update.clock)
                found = one.pull(who, clocks[who] + 1)
                clocks[who] = found.minimum if found else clocks[who]
                waits |= set() if found else {who}
            for values in one.release():
                clocks[values.member] = values.minimum
                waits.discard(values.member)
        told = {member: [each.ranges[0][0] for each in found] for member, found in one.state.trained.items()}
        for member in members:
            one.excuse(member)
        base = one.level_clocks()
        assert set(one.state.clocks.values()) <= {base}
        assert one.state.values.tolist() == [counted] * SIZE
        assert told == named
        twin = shard(founders, one.terms.backups, adds)
        for entry in journal:
            twin.replay(entry)
        assert np.array_equal(twin.state.values, one.state.values)
        assert twin.state.clocks == one.state.clocks
