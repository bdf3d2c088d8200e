"""Schedules of blocks: no two that depend on each other, all workers alike, and nothing lost with a worker."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.train.block_schedule import BlockSchedule

cases = st.fixed_dictionaries(
    {
        "blocks": st.integers(1, 24),
        "width": st.integers(1, 8),
        "threshold": st.floats(0, 1),
        "order": st.sampled_from(["priority", "turn"]),
        "delay": st.integers(0, 3),
        "seed": st.integers(0, 1000),
    }
)


def make(case: dict) -> tuple[BlockSchedule, torch.Tensor]:
    """A schedule over random dependences."""
    strengths = torch.rand(case["blocks"], case["blocks"], generator=torch.Generator().manual_seed(case["seed"]))
    strengths = torch.maximum(strengths, strengths.T)
    words = {**case, "width": min(case["width"], case["blocks"])}
    return BlockSchedule(**words, dependence=lambda block, others: strengths[block, others]), strengths


def completing(schedule: BlockSchedule) -> Callable[[], object]:
    """Return a step of an optimizer that the schedule watches."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule.watch(optimizer, lambda _: [])
    return optimizer.step


def draw_steps(schedule: BlockSchedule, steps: int) -> list[list[int]]:
    """Draw for one worker whose changes arrive at once."""
    state, seen, complete = schedule.first_state(), [], completing(schedule)
    for step in range(steps):
        seen.append(schedule.draw(state))
        schedule.share(seen[-1], 0, 1)
        complete()
        state = schedule.advance(state, seen[-1], torch.full((schedule.blocks,), 1.0 / (1 + step)))
    return seen


@given(cases)
@settings(max_examples=60, deadline=None)
def test_no_two_blocks_above_the_threshold_are_under_way_together(case: dict) -> None:
    schedule, strengths = make(case)
    seen = draw_steps(schedule, 12)
    for step in range(len(seen)):
        under_way = [block for drawn in seen[max(0, step - case["delay"]) : step + 1] for block in drawn]
        assert len(set(under_way)) == len(under_way)
        assert len(seen[step]) <= schedule.width
        for place, block in enumerate(under_way):
            assert (strengths[block, under_way[:place]] <= case["threshold"]).all()


@given(cases, st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_workers_draw_alike_and_their_shares_are_the_draw(case: dict, size: int) -> None:
    (one, _), (other, _) = make(case), make(case)
    state = one.first_state()
    drawn = one.draw(state)
    assert drawn == other.draw(state) == one.draw(state)
    marks = torch.zeros(one.blocks, dtype=torch.float64)
    for rank in range(size):
        one.share(drawn, rank, size)
        marks += one.marks.grad
    assert sorted(drawn) == marks.nonzero().flatten().tolist()
    assert float(marks.max()) == 1.0


@pytest.mark.parametrize("order", ["priority", "turn"])
def test_every_block_has_its_turn(order: str) -> None:
    seen = draw_steps(BlockSchedule(20, 3, order=order), 7)
    assert {block for drawn in seen for block in drawn} == set(range(20))


def test_what_changes_more_is_drawn_more_often() -> None:
    schedule = BlockSchedule(50, 4)
    state, counts, complete = schedule.first_state(), torch.zeros(50), completing(schedule)
    changes = torch.where(torch.arange(50) < 5, 1.0, 0.001)
    for _ in range(225):
        drawn = schedule.draw(state)
        schedule.share(drawn, 0, 1)
        complete()
        counts[drawn] += 1
        state = schedule.advance(state, drawn, changes)
    assert counts[:5].min() > 10 * counts[5:].mean()
    assert counts.min() >= 1


def test_a_block_whose_worker_was_lost_keeps_its_priority() -> None:
    schedule = BlockSchedule(4, 4)
    state = schedule.first_state()
    drawn = schedule.draw(state)
    arrived = schedule.share(drawn, 0, 2)  # the other worker's marks never came
    completing(schedule)()
    after = schedule.advance(state, drawn, torch.ones(4))
    lost = sorted(set(drawn) - set(arrived))
    assert after["updated"][lost].tolist() == [-1, -1]
    assert after["updated"][arrived].tolist() == [0, 0]
    assert set(schedule.draw(after)[:2]) == set(lost), "what nobody has updated goes first"


def test_a_block_that_two_workers_updated_changes_once() -> None:
    schedule, weights = BlockSchedule(4, 2), torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = torch.optim.SGD([weights], lr=1.0)
    schedule.watch(optimizer, lambda block: [weights.grad[block : block + 1]])
    schedule.marks.grad, weights.grad = (torch.tensor(v, dtype=torch.float64) for v in ([0, 2, 1, 0], [0, 6, 5, 0]))
    optimizer.step()
    assert weights.tolist() == [0, -3, -5, 0]
    assert schedule.advance(schedule.first_state(), [1, 2], torch.ones(4))["updated"].tolist() == [-1, 0, 0, -1]


def test_a_join_that_averages_is_refused() -> None:
    schedule = BlockSchedule(4, 2)
    complete = completing(schedule)
    schedule.marks.grad = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    with pytest.raises(UsageError, match=r"is 0\.50, not 1; join .* with loss='sum'"):
        complete()


def test_a_schedule_that_watches_no_optimizer_says_so() -> None:
    schedule = BlockSchedule(4, 2)
    with pytest.raises(UsageError, match=r"call schedule\.watch"):
        schedule.advance(schedule.first_state(), [0, 1], torch.zeros(4))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"blocks": 3, "width": 4}, r"width=4\): use 1 <= width <= blocks"),
        ({"blocks": 0, "width": 0}, "use 1 <= width"),
        ({"blocks": 3, "width": 1, "order": "random"}, "order='random'.*'priority' or 'turn'"),
        ({"blocks": 3, "width": 1, "delay": -1}, "delay=-1.*negative"),
        ({"blocks": 3, "width": 1, "threshold": float("nan")}, "threshold=nan.*negative"),
    ],
)
def test_bad_words_are_refused(words: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        BlockSchedule(**words)


def test_changes_of_another_number_of_blocks_are_refused() -> None:
    schedule = BlockSchedule(4, 2)
    with pytest.raises(UsageError, match=r"\[3\] changes; give one for each of 4 blocks"):
        schedule.advance(schedule.first_state(), [], torch.zeros(3))
