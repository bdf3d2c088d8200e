"""The reinforcement-learning example: its game, its loss, and what workers bring (row 191 of docs/systems.toml)."""

import sys
from pathlib import Path

import forked
import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from cartpole import CartPole, loss_of  # noqa: E402


def test_a_pole_that_is_always_pushed_the_same_way_falls_within_a_dozen_moves():
    world = CartPole(8, torch.Generator().manual_seed(1))
    moves = sum(int(world.push(torch.ones(8, dtype=torch.bool)).sum()) for _ in range(12))
    assert not world.alive.any()
    assert 8 * 7 <= moves <= 8 * 12


def test_moves_of_the_longer_game_become_more_likely():
    chances = torch.zeros(3, 2, requires_grad=True)
    played = torch.tensor([[True, True], [True, False], [True, False]])
    loss_of(chances, played).backward()
    assert chances.grad is not None
    assert chances.grad[0, 0] < 0 < chances.grad[0, 1]
    assert (chances.grad[1:, 1] == 0).all(), "moves that were not played do not count"


@pytest.mark.soak("training")
@pytest.mark.timeout(600)
def test_chainermn_four_workers_balance_the_pole_in_fewer_updates_than_one(tmp_path):
    needed = {}
    for workers in (1, 4):
        words = ["run", "--workers", str(workers), "--json", str(ROOT / "examples/cartpole.py"), "--iterations", "130"]
        done = forked.command(tmp_path, *words).wait(300)
        assert done.code == 0, done.err
        needed[workers] = done.json["metrics"]["iterations"]
    assert needed[4] <= 0.75 * needed[1], needed
