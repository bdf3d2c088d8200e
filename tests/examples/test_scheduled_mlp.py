"""A deep network on schedule, update, aggregate: STRADS (row 76)."""

import math
import re
import sys
from pathlib import Path

import forked
import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from scheduled_mlp import BlockedNetwork, made_data  # noqa: E402


def test_blocks_are_all_weights_each_once_and_their_gradients_are_backwards() -> None:
    torch.manual_seed(0)
    model, (x, label) = BlockedNetwork([2, 8, 6, 3], group=4), made_data(32)
    nn.functional.cross_entropy(model(x), label).backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    total = [torch.zeros_like(gradient) for gradient in wanted]
    for block in range(len(model.places)):
        model.take_gradients(nn.functional.cross_entropy(model(x), label), [block])
        total = [sum_ + parameter.grad for sum_, parameter in zip(total, model.parameters(), strict=True)]
    for sum_, gradient in zip(total, wanted, strict=True):
        torch.testing.assert_close(sum_, gradient)


def test_blocks_of_neighbouring_layers_depend_on_each_other() -> None:
    model = BlockedNetwork([2, 8, 8, 3], group=4)
    assert model.places[0][0] == model.places[1][0] == 0
    assert model.dependence(0, [1, 2, 4]).tolist() == [0.0, 1.0, 0.0]


def trained(folder: Path, workers: int) -> float:
    words = (str(ROOT / "examples/scheduled_mlp.py"), "--steps", "60", "--hidden", "12", "12", "--lr", "1")
    done = forked.command(folder, "run", "--workers", str(workers), *words, OMP_NUM_THREADS="1").wait(110)
    assert done.code == 0, done.err
    return float(re.findall(r"loss (\S+), accuracy", done.out)[0])


def test_strads_a_deep_network_learns_the_same_with_any_number_of_workers(tmp_path: Path) -> None:
    alone, shared = trained(tmp_path, 1), trained(tmp_path, 3)
    assert shared == pytest.approx(alone, rel=1e-6)
    assert alone < 0.95 * math.log(3)
