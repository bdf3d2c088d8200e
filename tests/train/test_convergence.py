"""Equal samples, with a codec and without: a CNN on MNIST, and a transformer on tinyshakespeare.

Wanted of every codec with feedback: 0.5 points of accuracy, 1 % of loss. Those without are held to it too, but for
TernGrad, of which its paper's row asks one point: its noise grows as batches shrink. docs/plans.md has the figures.
"""

import pytest
from equal_samples import accuracy, loss

CODECS = ["fp16", "bf16", "int8", "1bit-sgd", "2bit-mxnet", "terngrad", "qsgd", "topk(0.01)", "topk(0.01), int8",
          "randomk(0.1)", "strom", "dgc(ratio=0.01, momentum=0)", "esgd", "powersgd", "gupta"]  # fmt: skip
SEEDS = 5
"""One pair of trainings differs by 0.3 points (standard deviation) without any reason; half a point is asked for."""
POINTS = {"terngrad": 0.01}
"""Of accuracy that may be lost, where it is not half a point."""


@pytest.mark.soak("mnist")
@pytest.mark.timeout(1100)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("plan", CODECS)
def test_mnist_within_half_a_point(plan: str, workers: int) -> None:
    none = accuracy("bsp", workers, 8000, seeds=SEEDS)
    assert accuracy(plan, workers, 8000, seeds=SEEDS) > none - POINTS.get(plan, 0.005)


@pytest.mark.soak("shakespeare")
@pytest.mark.timeout(1100)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("plan", CODECS)
def test_shakespeare_within_a_hundredth_of_the_loss(plan: str, workers: int) -> None:
    assert loss(plan, workers, 400) < 1.01 * loss("bsp", workers, 400)


@pytest.mark.soak
@pytest.mark.timeout(1100)
@pytest.mark.parametrize("plan", ["onebit", "topk(0.01)"])
def test_seide_and_stich_without_feedback_it_is_clearly_worse(plan: str) -> None:
    assert accuracy(f"{plan}, feedback(off)", 2, 8000) < accuracy(plan, 2, 8000) - 0.01
    assert loss(f"{plan}, feedback(off)", 2, 400) > 1.02 * loss(plan, 2, 400)
