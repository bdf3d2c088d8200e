"""Factors of linear layers: their product is the gradient, and they are shorter; any other gradient is exact."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.testing.codec import mutated
from shoal.wire.codecs.factors import FactorCodec
from shoal.wire.head import HEAD, padded
from shoal.wire.layout import FlatLayout

TABLE = HEAD.size + padded(4)
"""Bytes before the numbers of one layer."""


class OneBatch:
    """The factors of one batch of the layer `w`."""

    def __init__(self, outer: Tensor, inner: Tensor) -> None:
        self.pair, self.whole = (outer, inner), list[str]()

    def take(self, name: str) -> tuple[Tensor, Tensor] | None:
        return self.pair

    def sent_whole(self, name: str, reason: str) -> None:
        self.whole.append(name)


def batch(rows: int, height: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, height, generator=generator), torch.randn(rows, width, generator=generator)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 60), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_chilimbi_the_product_is_the_gradient_and_shorter_whenever_it_can_be(
    rows: int, height: int, width: int, weight: float, seed: int
) -> None:
    outer, inner = batch(rows, height, width, seed)
    source = OneBatch(outer, inner)
    gradient = (outer.t() @ inner).mul_(weight)  # what autograd computes, by this worker's weight
    layout = FlatLayout.of([("w", (height, width))])
    payload, _ = FactorCodec(source).encode(gradient, layout)
    decoded = FactorCodec().decode(payload, layout).view(height, width)
    torch.testing.assert_close(decoded, gradient, atol=1e-6 * float(gradient.abs().max()), rtol=0)
    shorter = rows * (height + width) < height * width
    assert payload.numel() == TABLE + 4 * (rows * (height + width) if shorter else height * width)
    assert bool(source.whole) != shorter


def test_a_gradient_that_is_not_the_product_travels_as_it_is() -> None:
    outer, inner = batch(3, 20, 30)
    source, layout = OneBatch(outer, inner), FlatLayout.of([("w", (20, 30))])
    gradient = outer.t() @ inner
    gradient[7, 7] += 1e-4 * gradient.abs().max()
    payload, _ = FactorCodec(source).encode(gradient, layout)
    assert torch.equal(FactorCodec().decode(payload, layout), gradient.view(-1))
    assert source.whole == ["w"]


def test_nothing_travels_of_a_layer_without_a_gradient() -> None:
    layout = FlatLayout.of([("w", (20, 30)), ("v", (4, 5))])
    payload, _ = FactorCodec().encode(torch.zeros(620), layout)
    assert payload.numel() == HEAD.size + padded(8)
    assert not FactorCodec().decode(payload, layout).any()


def test_damaged_factors_are_refused_or_decoded() -> None:
    outer, inner = batch(3, 20, 30)
    layout = FlatLayout.of([("w", (20, 30))])
    payload, _ = FactorCodec(OneBatch(outer, inner)).encode(outer.t() @ inner, layout)
    refused = 0
    for number in range(1000):
        try:
            assert FactorCodec().decode(mutated(payload, number), layout).shape == (600,)
        except PayloadError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("rows", [-2, 12, 1 << 30])
def test_rows_that_no_encoder_writes_are_refused(rows: int) -> None:
    layout = FlatLayout.of([("w", (20, 30))])
    payload, _ = FactorCodec().encode(torch.ones(600), layout)
    payload[HEAD.size : HEAD.size + 4].view(torch.int32)[0] = rows
    with pytest.raises(PayloadError, match=f"a payload holds {rows} rows of layer 'w', which has 600 elements"):
        FactorCodec().decode(payload, layout)
