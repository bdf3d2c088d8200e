"""Elastic rounds: replicas stay different, the centre moves by the sum of their corrections, and it is what is kept."""

import pytest
import torch
from test_local_rounds import move, numbers, opened
from torch import Tensor

from shoal.sync.local.easgd import ElasticAveragingOuter
from shoal.sync.local.outer import OuterOptimizer
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.local.sma import ModelAveragingOuter
from shoal.testing.world import Result, WorkerWorld, run_world

SIZE, STEPS, EACH = 4, 6, 2
OUTERS: dict[str, tuple[OuterOptimizer, float, float]] = {
    "easgd": (ElasticAveragingOuter(), 0.9 / SIZE, 0.0),
    "easgd(alpha)": (ElasticAveragingOuter(0.125), 0.125, 0.0),
    "sma": (ModelAveragingOuter(), 1 / SIZE, 0.9),
}
"""The optimizer, and its alpha and momentum for four workers."""


def centre(made: LocalStepsSynchronizer, parameter: Tensor) -> Tensor:
    with made.agreed_parameters():
        return parameter.detach().clone()


def by_hand(alpha: float, momentum: float) -> tuple[list[Tensor], Tensor]:
    """The papers' formulas on all replicas at once."""
    replicas = [torch.zeros(4, 3, dtype=torch.float64) for _ in range(SIZE)]
    middle = before = torch.zeros(4, 3, dtype=torch.float64)
    for step in range(STEPS):
        replicas = [replica + numbers(rank, step).double() for rank, replica in enumerate(replicas)]
        if step % EACH == EACH - 1:
            corrections = [alpha * (replica - middle) for replica in replicas]
            replicas = [replica - correction for replica, correction in zip(replicas, corrections, strict=True)]
            middle, before = middle + sum(corrections) + momentum * (middle - before), middle
    return replicas, middle


@pytest.mark.parametrize("kind", list(OUTERS))
def test_a_round_is_the_formula_of_its_paper(kind: str) -> None:
    outer, alpha, momentum = OUTERS[kind]

    def body(world: WorkerWorld) -> Result:
        parameter = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
        made, optimizer = opened(world, parameter, outer, EACH)
        for step in range(STEPS):
            move(made, optimizer, parameter, numbers(world.group.rank, step).double())
            assert made.is_round_open == (step % EACH == 0)
        assert not made.replicas_equal
        own, agreed = parameter.detach().clone(), centre(made, parameter)
        made.settle()
        assert made.replicas_equal
        assert torch.equal(parameter.detach(), agreed)
        return {"own": own, "centre": agreed}

    replicas, middle = by_hand(alpha, momentum)
    results = run_world(SIZE, body)
    for result, replica in zip(results, replicas, strict=True):
        torch.testing.assert_close(result["own"], replica, atol=1e-9, rtol=1e-12)
        torch.testing.assert_close(result["centre"], middle, atol=1e-9, rtol=1e-12)
        assert torch.equal(result["centre"], results[0]["centre"])


def test_corrections_of_all_add_up_to_the_move_of_the_centre() -> None:
    """Also with unequal weights, and with a worker whose parameters are not finite, which goes on from the centre."""
    shares = (0.1, 0.2, 0.4, 0.3)

    def body(world: WorkerWorld) -> Result:
        parameter = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
        made, optimizer = opened(world, parameter, ElasticAveragingOuter(), 1)
        rank = world.group.rank
        made.part.weights.round_share = lambda: shares[rank]  # type: ignore[method-assign]
        found: Result = {}
        for step in range(3):
            start, at = centre(made, parameter), parameter.detach().clone()
            by = numbers(rank, step).double()
            move(made, optimizer, parameter, torch.full_like(by, torch.nan) if (rank, step) == (3, 2) else by)
            found[f"moved {step}"] = centre(made, parameter) - start
            found[f"corrected {step}"] = at + by - parameter.detach()
        return found | {"own": parameter.detach().clone(), "centre": centre(made, parameter)}

    results = run_world(SIZE, body)
    for step in range(3):
        counted = results[:3] if step == 2 else results
        corrections = sum(result[f"corrected {step}"] for result in counted)
        torch.testing.assert_close(results[0][f"moved {step}"], corrections, atol=1e-9, rtol=1e-12)
    assert torch.equal(results[3]["own"], results[3]["centre"])


def test_parameters_come_back_after_a_look_at_the_centre() -> None:
    def body(world: WorkerWorld) -> Result:
        parameter = torch.zeros(4, 3, requires_grad=True)
        made, optimizer = opened(world, parameter, ElasticAveragingOuter(), 1)
        move(made, optimizer, parameter, numbers(world.group.rank, 0))
        before = parameter.detach().clone()
        with pytest.raises(KeyboardInterrupt), made.agreed_parameters():
            raise KeyboardInterrupt
        assert torch.equal(parameter.detach(), before)
        return {}

    run_world(2, body)
