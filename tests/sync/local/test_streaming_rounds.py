"""Rounds that travel while the next steps are made, and rounds of a part of the parameters: nothing is lost."""

import pytest
import torch
from test_local_rounds import exchange, move, numbers
from torch import Tensor

from shoal.core.errors import UsageError
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.diloco import NesterovOuter
from shoal.sync.local.outer import OuterOptimizer
from shoal.sync.local.streaming import SETTLE_ROUNDS, StreamingRoundsSynchronizer, cut_evenly
from shoal.sync.synchronizer import EqualWeights, Part
from shoal.testing import SynchronizerCase
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.step_transaction import StepTransaction


class TestOverlap(SynchronizerCase):
    sizes = (2, 2)
    synchronous = False

    def make(self, group, directory):
        return StreamingRoundsSynchronizer(exchange(group, directory), NesterovOuter(0.7, 0.5), 2, overlap=True)


class TestFragments(SynchronizerCase):
    sizes = (2, 2)
    synchronous = False

    def make(self, group, directory):
        return StreamingRoundsSynchronizer(exchange(group, directory), AverageOuter(), 4, fragments=4)


class TestOverlappingFragmentsWithResiduals(SynchronizerCase):
    sizes = (2, 2)
    synchronous = False

    def make(self, group, directory):
        coded = exchange(group, directory, "lowrank(1)")
        return StreamingRoundsSynchronizer(coded, NesterovOuter(0.7, 0.5), 2, overlap=True, fragments=2)


def opened(world: WorkerWorld, parameters: list[Tensor], outer: OuterOptimizer, steps: int, wants=lambda: False, **how):
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    made = StreamingRoundsSynchronizer(exchange(world.group, world.dir), outer, steps, **how)
    session = world.group.session
    names = [f"p{n}" for n in range(len(parameters))]
    made.open(
        Part(
            names, parameters, session, StepTransaction(session), EqualWeights(session), optimizers=[optimizer],
            wants_boundary=wants,
        )
    )  # fmt: skip
    return made, optimizer


def delayed_by_hand(outer: OuterOptimizer, size: int, rounds: int, each: int) -> list[list[Tensor]]:
    """Of every worker, what it holds after each round: the anchor one round late, and its own last round."""
    anchor, momentum = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, 3, dtype=torch.float64)
    last: list[Tensor] = []
    seen: list[list[Tensor]] = [[] for _ in range(size)]
    for number in range(rounds):
        block = range(number * each, (number + 1) * each)
        changes = [sum(numbers(rank, step).double() for step in block) for rank in range(size)]
        if last:
            anchor = outer.step(anchor, sum(last) / size, momentum, size)
        for rank, change in enumerate(changes):
            seen[rank].append(anchor + change)
        last = changes
    final = outer.step(anchor, sum(last) / size, momentum, size)
    return [[*held, final] for held in seen]


@pytest.mark.parametrize("outer", [AverageOuter(), NesterovOuter(0.7, 0.9)], ids=["average", "diloco"])
def test_a_round_is_applied_one_round_late_corrected_by_what_was_changed_since(
    outer: OuterOptimizer,
) -> None:
    size, rounds, each = 2, 4, 2

    def body(world: WorkerWorld) -> Result:
        parameter = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
        made, optimizer = opened(world, [parameter], outer, each, overlap=True)
        seen = []
        for step in range(rounds * each):
            move(made, optimizer, parameter, numbers(world.group.rank, step).double())
            if step % each == each - 1:
                seen.append(parameter.detach().clone())
            assert not made.replicas_equal
        made.settle()
        return {"seen": torch.stack([*seen, parameter.detach()])}

    expected = delayed_by_hand(outer, size, rounds, each)
    for rank, result in enumerate(run_world(size, body)):
        torch.testing.assert_close(result["seen"], torch.stack(expected[rank]), atol=1e-9, rtol=1e-12)


def test_workers_with_the_same_data_are_one_worker_whatever_is_late() -> None:
    """With the average: every round adds what this worker has changed already."""

    def body(world: WorkerWorld) -> Result:
        parameter, alone = torch.zeros(4, 3, requires_grad=True), torch.zeros(4, 3)
        made, optimizer = opened(world, [parameter], AverageOuter(), 2, overlap=True)
        for step in range(7):
            move(made, optimizer, parameter, numbers(0, step))
            alone += numbers(0, step)
            assert torch.equal(parameter.detach(), alone)
        return {}

    run_world(2, body)


@pytest.mark.parametrize("how", [{"overlap": True}, {"fragments": 3}, {"overlap": True, "fragments": 3}], ids=str)
def test_the_mean_conserves_what_all_have_changed(how: dict[str, int]) -> None:
    """Whole numbers of three tensors; the last round is short."""
    size, steps = 4, 26

    def body(world: WorkerWorld) -> Result:
        parameters = [torch.zeros(4, 3, requires_grad=True) for _ in range(3)]
        made, optimizer = opened(world, parameters, AverageOuter(), 3, **how)
        for step in range(steps):
            made.before_step(optimizer)
            with torch.no_grad():
                for place, parameter in enumerate(parameters):
                    parameter.add_(4 * numbers(world.group.rank, step) + 4 * place)
            made.after_step(optimizer)
        made.settle()
        assert made.replicas_equal
        return {"p": torch.stack([p.detach() for p in parameters]), "steps": torch.tensor(made.totals.steps)}

    total = sum(numbers(rank, step) for rank in range(size) for step in range(steps))
    expected = torch.stack([total + 4 * place * steps for place in range(3)])
    for result in run_world(size, body):
        assert torch.equal(result["p"], expected)
        assert int(result["steps"]) == steps


def test_an_exchange_of_one_of_n_fragments_sends_an_nth_of_the_bytes() -> None:
    count, elements, steps = 4, 1 << 14, 8

    def body(world: WorkerWorld) -> Result:
        peaks = []
        for fragments in (1, count):
            parameters = [torch.zeros(elements, requires_grad=True) for _ in range(2 * count)]
            made, optimizer = opened(world, parameters, AverageOuter(), steps, fragments=fragments)
            sent = []
            for _ in range(2 * steps):
                before = made.totals.sent
                move(made, optimizer, parameters[0], torch.ones(elements))
                sent.append(made.totals.sent - before)
            assert sum(count > 0 for count in sent) == 2 * fragments
            peaks.append(max(sent))
        return {"peaks": torch.tensor(peaks)}

    for result in run_world(2, body):
        whole, peak = result["peaks"].tolist()
        assert peak == pytest.approx(whole / count, rel=0.01)


def test_replicas_become_equal_when_one_worker_wants_a_boundary_and_now_and_then() -> None:
    """The wish travels with a round, and the round that leaves after its landing is made at once."""

    def body(world: WorkerWorld) -> Result:
        wishes = [False] * 3 + [world.group.rank == 1] + [False] * 99
        parameter = torch.zeros(4, 3, requires_grad=True)
        made, optimizer = opened(world, [parameter], AverageOuter(), 1, lambda: wishes.pop(0), overlap=True)
        equal = []
        for step in range(6 + SETTLE_ROUNDS):
            move(made, optimizer, parameter, numbers(world.group.rank, step))
            equal.append(made.replicas_equal)
        made.settle()
        return {"equal": torch.tensor(equal)}

    for result in run_world(2, body):
        found = result["equal"].nonzero().flatten().tolist()
        assert found == [4, 5 + SETTLE_ROUNDS]


@pytest.mark.parametrize("overlap", [False, True])
def test_once_replicas_are_equal_the_first_fragment_is_next_as_for_a_newcomer(overlap: bool) -> None:
    """Workers that offered different fragments would wait for each other; bytes tell which one has left."""
    small, large = 1 << 4, 1 << 12

    def body(world: WorkerWorld) -> Result:
        parameters = [torch.zeros(size, requires_grad=True) for size in (small, large)]
        made, optimizer = opened(world, parameters, AverageOuter(), 2, overlap=overlap, fragments=2)

        def sent_by_next_fragment() -> int:
            before = made.totals.sent
            for _ in range(1 + 2 * overlap):  # it leaves when the second step begins, and lands when that ends
                move(made, optimizer, parameters[0], torch.ones(small))
                if made.totals.sent > before:
                    break
            return made.totals.sent - before

        first = sent_by_next_fragment()
        made.settle()
        assert made.replicas_equal
        return {"sent": torch.tensor([first, sent_by_next_fragment()])}

    for result in run_world(2, body):
        first, after = result["sent"].tolist()
        assert first == after < large


def test_a_change_that_is_not_finite_does_not_count_and_its_worker_goes_on() -> None:
    def body(world: WorkerWorld) -> Result:
        parameter = torch.zeros(4, 3, requires_grad=True)
        made, optimizer = opened(world, [parameter], AverageOuter(), 1, overlap=True)
        bad = torch.full((4, 3), torch.inf)
        for step in range(3):
            move(made, optimizer, parameter, bad if (world.group.rank, step) == (1, 1) else torch.ones(4, 3))
        made.settle()
        return {"p": parameter.detach().clone(), "dropped": torch.tensor(made.totals.dropped)}

    for rank, result in enumerate(run_world(2, body)):
        assert torch.equal(result["p"], torch.full((4, 3), 3.0))
        assert int(result["dropped"]) == (rank == 1)


def test_fragments_are_cut_by_bytes_and_none_is_empty() -> None:
    assert cut_evenly([4, 4, 4, 4], 2) == [[0, 1], [2, 3]]
    assert cut_evenly([100, 1, 1], 3) == [[0], [1], [2]]
    assert cut_evenly([1, 1, 100], 2) == [[0, 1], [2]]


def test_more_fragments_than_tensors_are_refused() -> None:
    def body(world: WorkerWorld) -> Result:
        with pytest.raises(UsageError, match=r"fragments=3: the model has 1 parameter tensors.*write fragments=1"):
            opened(world, [torch.zeros(2, requires_grad=True)], AverageOuter(), 3, fragments=3)
        return {}

    run_world(2, body)
