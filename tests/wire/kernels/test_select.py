"""The kernel that chooses does what its reference does, to the bit: places, values, residual and velocity."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.wire import kernels
from shoal.wire.kernels.select import PIECE
from shoal.wire.layout import FlatLayout
from shoal.wire.selection import VelocityState, count_by_layer, count_overall, select_largest

SHAPES = {
    "one": [1],
    "odd": [7, 1, 100, 0, 33],
    "pieces": [PIECE, PIECE + 1, 4 * PIECE + 33],
    "large": [200_003, 65_536],
    "none": [],
}
KINDS = {
    "normal": lambda n: torch.randn(n),
    "equal": lambda n: torch.ones(n),
    "zeros": lambda n: torch.zeros(n),
    "tiny": lambda n: torch.randn(n) * 1e-38,
    "few": lambda n: torch.where(torch.rand(n) < 0.01, torch.randn(n), torch.zeros(n)),
    "rising": lambda n: torch.arange(n, dtype=torch.float32),
    "falling": lambda n: -torch.arange(n, 0, -1, dtype=torch.float32),
    "lines": lambda n: torch.randn(n) * torch.where(torch.arange(n) // 16 % 31 == 0, 100.0, 1.0),
}
WAYS = ["plain", "feedback", "moving", "masking"]


def run(values, shares, way, shift, fast):
    """Two steps; everything that came of them."""
    rest, velocity = torch.linspace(-1, 1, values.numel()), torch.linspace(2, -2, values.numel())
    push = VelocityState(velocity, 0.9, way == "masking") if way in ("moving", "masking") else None
    results = []
    for step in range(2):
        given = values.clone()
        if fast:
            places, found = select_largest(given, None if way == "plain" else rest, shares, shift + step, push)
        else:
            with kernels.reference():
                places, found = select_largest(given, None if way == "plain" else rest, shares, shift + step, push)
        assert torch.equal(given, values)
        results += [places.copy(), found.copy()]
    return [*results, rest.numpy(), velocity.numpy()]


def check(sizes, kind, way, ratio, share):
    layout = FlatLayout.of([(f"layer{number}", (size,)) for number, size in enumerate(sizes)])
    torch.manual_seed(layout.numel)
    values, shares = KINDS[kind](layout.numel), share(ratio, layout)
    one, other = (run(values, shares, way, 5, fast) for fast in (True, False))
    for found, expected in zip(one, other, strict=True):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


size_of_a_layer = st.one_of(st.integers(0, 40), st.integers(0, 3 * PIECE), st.sampled_from([PIECE, PIECE + 1]))


@settings(max_examples=150)
@example([], "normal", "plain", 0.01, count_overall)
@example([PIECE, PIECE + 1, 4 * PIECE + 33], "lines", "masking", 0.01, count_overall)
@example([200_003, 65_536], "normal", "moving", 0.001, count_by_layer)
@given(
    st.lists(size_of_a_layer, max_size=5),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from(WAYS),
    st.sampled_from([0.001, 0.01, 0.3, 1.0]),
    st.sampled_from([count_by_layer, count_overall]),
)
def test_what_is_chosen_and_what_is_left_are_the_references(sizes, kind, way, ratio, share):
    check(sizes, kind, way, ratio, share)


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_at_every_ratio_is_the_references(shape, way):
    for kind, ratio, share in itertools.product(KINDS, (0.001, 0.01, 0.3, 1.0), (count_by_layer, count_overall)):
        check(SHAPES[shape], kind, way, ratio, share)


@pytest.mark.parametrize("way", WAYS)
def test_a_sample_that_holds_all_the_large_ones_is_not_believed(way):
    """Its lines are those that shift 0 takes: the threshold it gives is reached by too few."""
    shares = count_overall(0.01, FlatLayout.flat(100_000))
    _, _, count, stride, rank = shares.rows[0].tolist()
    values = torch.randn(100_000)
    values[torch.arange(100_000) // 16 % stride == 0] *= 1000
    assert 0 < rank < int((values.abs() > 10).sum()) < 2 * count
    for found, expected in zip(*(run(values, shares, way, 0, fast) for fast in (True, False)), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("where", ["values", "rest", "velocity"])
def test_what_is_not_finite_is_told_in_any_layer(bad, fast, where):
    layout = FlatLayout.of([("a", (5000,)), ("b", (30,)), ("c", (3 * PIECE + 5,))])
    for place in (0, 4999, 5003, 5030 + PIECE, layout.numel - 1):
        tensors = {name: torch.randn(layout.numel) for name in ("values", "rest", "velocity")}
        tensors[where][place] = bad
        push = VelocityState(tensors["velocity"], 0.9, True)
        shares = count_by_layer(0.01, layout)
        if fast:
            assert select_largest(tensors["values"], tensors["rest"], shares, 0, push) is None
        else:
            with kernels.reference():
                assert select_largest(tensors["values"], tensors["rest"], shares, 0, push) is None


def test_a_sum_that_overflows_is_told():
    huge = torch.full((3000,), 3e38)
    assert select_largest(huge, huge.clone(), count_overall(0.01, FlatLayout.flat(3000))) is None
