"""Codecs keep up with a fast network on one core: row 172 of docs/systems.toml."""

import sys
from pathlib import Path

import pytest
import torch

from shoal.wire import kernels

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from kernels import CASES, Case, seconds

ELEMENTS = 1 << 22
GIGABYTE = 1e9
ENTROPY = "ternary golomb"
"""Fewer bytes than two bits an element, at a price: chosen by whoever has a slower link than that."""


@pytest.mark.soak("clock")
@pytest.mark.parametrize("name", [name for name in CASES if name != ENTROPY])
def test_vanhoucke_quantising_choosing_and_packing_take_a_gigabyte_a_second(name: str) -> None:
    """Of the thread's own time on a processor, with feedback: the best of ten, for other work only slows it down."""
    torch.set_num_threads(1)
    kernels.warm()
    case = Case(CASES[name][0], torch.randn(ELEMENTS))
    for act in (case.encode, case.decode):
        assert 4 * ELEMENTS / min(seconds(act) for _ in range(10)) >= GIGABYTE
