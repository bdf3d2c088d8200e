"""What is not zero travels, and what comes out is what went in."""

import pytest
import torch
from torch import Tensor

from shoal.wire.codecs.exact import AS_IT_IS
from shoal.wire.codecs.nonzero import NonzeroCodec
from shoal.wire.head import HEAD
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import ErrorFeedback

LAYOUT = FlatLayout.of(
    [("sparse", (300, 40)), ("dense", (50, 40)), ("empty", (0,)), ("bias", (50,)), ("none", (30, 30))]
)


def gradients(*densities: float) -> Tensor:
    """Each layer with this share of elements that are not zero."""
    torch.manual_seed(0)
    values = torch.randn(LAYOUT.numel)
    for part, density in zip(LAYOUT.parts, densities, strict=True):
        values[part.offset : part.end] *= torch.rand(part.numel) < density
    return values


def sent(payload: Tensor) -> list[int]:
    """Elements of each layer that a payload says it holds."""
    return payload[HEAD.size : HEAD.size + 4 * len(LAYOUT.parts)].view(torch.int32).tolist()


def test_nexus_each_tensor_is_dense_or_sparse_by_its_own_density() -> None:
    values = gradients(0.01, 1.0, 1.0, 0.02, 0.0)
    payload, _ = NonzeroCodec().encode(values, LAYOUT)
    places = [int((values[part.offset : part.end] != 0).sum()) for part in LAYOUT.parts]
    assert sent(payload) == [places[0], AS_IT_IS, AS_IT_IS, places[3], 0]
    assert payload.numel() < 1.1 * 4 * sum(places) < 0.2 * 4 * LAYOUT.numel


@pytest.mark.parametrize("density", [0.0, 0.001, 0.1, 0.5, 0.9, 0.95, 0.98, 1.0])
def test_nexus_is_exact_and_never_a_hundredth_longer_than_dense(density: float) -> None:
    values = gradients(*[density] * len(LAYOUT.parts))
    payload, _ = NonzeroCodec().encode(values, LAYOUT)
    assert torch.equal(NonzeroCodec().decode(payload, LAYOUT), values)
    assert payload.numel() <= NonzeroCodec().max_bytes(LAYOUT) < 1.01 * 4 * LAYOUT.numel


def test_the_smallest_and_the_largest_survive() -> None:
    values = torch.zeros(1000)
    values[[3, 500, 999]] = torch.tensor([-1e-45, 1e-45, -3e38])
    payload, _ = NonzeroCodec().encode(values)
    assert torch.equal(NonzeroCodec().decode(payload, FlatLayout.flat(1000)), values)
    assert payload.numel() < 100


def test_nothing_is_left_for_the_next_step() -> None:
    values = gradients(0.01, 1.0, 1.0, 0.02, 0.0)
    _, state = ErrorFeedback(NonzeroCodec()).encode(values, LAYOUT)
    assert not state["residual"].any()
