"""Deep Q-learning: its games, its loss, and how much sooner four actors are done (row 154 of docs/systems.toml)."""

import statistics
import sys
from pathlib import Path

import forked
import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from dqn import Balance, Catch, ReplayMemory, loss_of, try_out  # noqa: E402

SEEDS = 5


def test_a_pole_falls_once_and_its_game_begins_again() -> None:
    games = Balance(4, torch.Generator().manual_seed(0))
    for _ in range(30):
        reward, after, lost, over = games.move(torch.ones(4, dtype=torch.int64))
        assert torch.equal(reward, -lost.float())
        assert torch.equal(lost, over), "a game that is only cut off is not lost"
        assert (games.seen[over].abs() <= 0.05).all()
        assert torch.equal(games.seen[~over], after[~over])


def test_a_ball_is_caught_by_who_follows_it() -> None:
    class Follower(nn.Module):
        def forward(self, seen: torch.Tensor) -> torch.Tensor:
            grid = seen.view(-1, Catch.ROWS, Catch.COLUMNS)
            ball, paddle = grid[:, :-1].sum(1).argmax(1), grid[:, -1].argmax(1)
            return nn.functional.one_hot((ball - paddle).sign() + 1, 3)

    class Still(nn.Module):
        def forward(self, seen: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[0, 1, 0]]).expand(len(seen), 3)

    assert try_out(Follower(), Catch, 1) == 1.0
    assert -1.0 <= try_out(Still(), Catch, 1) < 0.5


def test_the_target_says_what_the_chosen_move_is_worth_and_nothing_after_a_loss() -> None:
    network, target = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.eye(2))
        target.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 7.0]]))
    memory, seen = ReplayMemory(2), torch.tensor([[1.0, 0.0]])
    for lost in (False, True):
        memory.add(seen, torch.tensor([0]), torch.tensor([0.5]), seen, torch.tensor([lost]))
    moves = tuple(each[:2] for each in (memory._before, memory._action, memory._reward, memory._after))
    worth = torch.tensor([0.5 + 0.99 * 3.0, 0.5])
    wanted = nn.functional.smooth_l1_loss(torch.tensor([1.0, 1.0]), worth)
    torch.testing.assert_close(loss_of(network, target, (*moves, memory._discount[:2])), wanted)


def iterations(folder: Path, game: str, workers: int, seed: int) -> float:
    words = ["run", "--workers", str(workers), "--seed", str(seed), "--plan", "server, every(1)", "--checkpoint", "off"]
    script = [str(ROOT / "examples/dqn.py"), "--game", game, "--iterations", "6000"]
    done = forked.command(folder, *words, "--json", *script).wait(600)
    assert done.code == 0, done.err
    return float(done.json["metrics"]["iterations"])


@pytest.mark.soak("training")
@pytest.mark.timeout(3000)
def test_rao_four_actors_solve_cartpole_in_half_of_the_iterations_of_one_and_another_game_as_it_is(
    tmp_path: Path,
) -> None:
    """Rao et al. 2019. Medians of five seeds, in moves of each actor: two cores are not faster with four processes."""
    needed = {workers: [iterations(tmp_path, "cartpole", workers, seed) for seed in range(SEEDS)] for workers in (1, 4)}
    assert 2 * statistics.median(needed[4]) <= statistics.median(needed[1]), needed
    assert iterations(tmp_path, "catch", 4, 0) < 6000
