"""Independent streams, and borrowing the global generators."""

import random

import numpy as np
import pytest
import torch

from shoal.core.seeds import RandomStream, mix, seed_all


def draw() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


def test_mix_is_a_pure_function_of_its_parts() -> None:
    assert mix(1, "data", 2) == mix(1, "data", 2) == 9082018562613582770
    assert len({mix(), mix(0), mix(1), mix("1"), mix(1, 2), mix(12), mix(2, 1), mix("1", "2")}) == 8
    assert all(0 <= mix(number) < 2**63 for number in range(200))


def test_seed_all_repeats_every_generator() -> None:
    seed_all(5)
    first = draw()
    seed_all(5)
    assert draw() == first
    seed_all(6)
    assert all(here != there for here, there in zip(draw(), first, strict=True))


def test_seeds_beyond_32_bits_are_taken() -> None:
    seed_all(2**63 - 1)
    assert all(0.0 <= number < 1.0 for number in draw())


def test_a_stream_leaves_the_scripts_own_draws_alone() -> None:
    seed_all(5)
    undisturbed = [draw(), draw()]
    seed_all(5)
    stream = RandomStream(9)
    disturbed = [draw()]
    with stream.swap_in():
        draw()
    assert [*disturbed, draw()] == undisturbed


def test_a_stream_goes_on_where_it_stopped() -> None:
    whole, parts = RandomStream(9), RandomStream(9)
    with whole.swap_in():
        expected = [draw(), draw()]
    found = []
    for seed in (1, 2):
        seed_all(seed)
        with parts.swap_in():
            found.append(draw())
    assert found == expected


def test_the_scripts_state_comes_back_after_an_error() -> None:
    seed_all(5)
    expected = draw()
    seed_all(5)
    with pytest.raises(ZeroDivisionError), RandomStream(9).swap_in():
        1 / draw().count(None)
    assert draw() == expected
