"""What counts as finite, and who is told to have sent what is not."""

from collections import Counter

import pytest
import torch

from shoal.membership.session import slot_of
from shoal.train.numerics import IN_A_ROW, SMALL, GradientSums, RemoteSuspects, finite

GOOD = {
    "usual": [torch.randn(5, 3), torch.randn(7)],
    "a sum that overflows": [torch.full((4,), 3e38)],
    "two that cancel": [torch.full((4,), 3e38), torch.full((4,), -3e38)],
    "half": [torch.full((4000,), 60000.0, dtype=torch.float16)],
    "mixed kinds": [torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.bfloat16)],
    "sparse": [torch.eye(3).to_sparse()],
    "complex": [torch.ones(2, dtype=torch.complex64)],
    "empty": [torch.empty(0)],
    "none at all": [],
}


@pytest.mark.parametrize("gradients", GOOD.values(), ids=GOOD)
def test_finite(gradients: list[torch.Tensor]) -> None:
    assert finite(gradients)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_not_finite(bad: float, dtype: torch.dtype) -> None:
    tensor = torch.randn(4, 5).to(dtype)
    tensor[2, 3] = bad
    assert not finite([torch.ones(3), tensor])
    assert not finite([tensor, -tensor])
    assert not finite([tensor.to_sparse()])


def test_small_parameters_tell_whose_gradients_were_bad() -> None:
    weight, bias = torch.zeros(SMALL + 1), torch.zeros(3)
    evidence = GradientSums([weight, bias])
    evidence.saw(0, torch.full_like(weight, float("nan")))  # too large to be looked at by itself
    evidence.saw(1, torch.ones(3))
    assert not evidence.bad
    evidence.saw(1, torch.tensor([0.0, float("nan"), 0.0]))
    assert evidence.bad
    evidence.clear()
    assert not evidence.bad


def test_without_small_parameters_the_smallest_serves() -> None:
    evidence = GradientSums([torch.zeros(SMALL + 9), torch.zeros(SMALL + 5)])
    evidence.saw(1, torch.full((SMALL + 5,), float("inf")))
    assert evidence.bad


def test_one_that_denies_costs_each_of_the_others_its_place_once_at_the_most() -> None:
    """Worker 2 sends what is not finite and denies it; the others come back after they were given up."""
    suspects, step, lost = RemoteSuspects(), 0, Counter[int]()
    remote = ["w2.1", "w3.1", "w4.1"]
    for start in range(2, 30):
        if 2 not in map(slot_of, remote):
            step += 100  # all is well, until it comes again
            remote.append(f"w2.{start}")
        step += IN_A_ROW
        gone = suspects.choose(remote, step)
        lost[slot_of(gone)] += 1
        remote.remove(gone)
        if slot_of(gone) != 2:
            remote.append(f"w{slot_of(gone)}.{start}")
    assert lost[3] <= 1
    assert lost[4] <= 1
    assert lost[2] >= 26, "and itself its own each time"
