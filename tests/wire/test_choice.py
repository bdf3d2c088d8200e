"""The largest elements: the compiled threshold is the reference's, to the bit, and as many as asked for are chosen."""

import numpy as np
import pytest
import torch

from shoal.wire import choice, kernels

SIZES = [1, 7, 100, choice.LEAST, choice.LEAST + 1, choice.LEAST + 33, 200_003]
KINDS = {
    "normal": lambda n: torch.randn(n),
    "equal": lambda n: torch.ones(n),
    "zeros": lambda n: torch.zeros(n),
    "tiny": lambda n: torch.randn(n) * 1e-39,
    "few": lambda n: torch.where(torch.rand(n) < 0.01, torch.randn(n), torch.zeros(n)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("feedback", [False, True])
def test_the_compiled_threshold_is_the_references(kind, numel, feedback):
    torch.manual_seed(numel)
    values, rest = KINDS[kind](numel), torch.randn(numel) if feedback else None
    for ratio in (0.001, 0.01, 0.3, 1.0):
        count = choice.wanted(ratio, numel)
        for shift in (0, 5):
            found = choice._threshold(values, rest, count, shift)
            with kernels.reference():
                assert found == choice._threshold(values, rest, count, shift)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_told_wherever_it_lies(bad):
    for place in (0, 4000, 9999):
        values = torch.randn(10_000)
        values[place] = bad
        assert choice.largest(values, None, 10, 0, 0) is None
        assert choice.largest(torch.randn(10_000), values, 10, 0, 0) is None


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
def test_about_as_many_are_chosen_as_were_asked_for(ratio):
    numel = 300_000
    count = choice.wanted(ratio, numel)
    generator = torch.Generator().manual_seed(0)
    chosen = []
    for shift in range(20):
        places, values = choice.largest(torch.randn(numel, generator=generator), None, count, 0, shift)
        assert len(places) <= choice.most(count, numel)
        assert (np.diff(places) > 0).all()
        assert np.isfinite(values).all()
        chosen.append(len(places))
    assert 0.8 * count < np.mean(chosen) < 1.25 * count
