"""Policy gradients on CartPole: every worker plays its own games, and all learn one policy.

    python examples/cartpole.py
    shoal run --workers 4 examples/cartpole.py

An iteration plays `--games` games on every worker, then makes one step of REINFORCE (Williams 1992) with the mean over
all of them. More workers play more games for each step, so fewer steps are needed until the pole stands for `--goal`
moves on the average. The script draws its batches itself, so it keeps its counter in `run.state`.
"""

import argparse
import math

import torch
from torch import nn

import shoal

LONGEST = 200
"""Moves after which a game ends though the pole still stands."""


class CartPole:
    """Many carts at once, each balancing a pole while it is pushed left or right (Barto, Sutton & Anderson 1983)."""

    GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TICK = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02

    def __init__(self, games: int, generator: torch.Generator) -> None:
        # position and speed of the cart, angle and angular speed of the pole
        self.state = 0.1 * torch.rand(games, 4, generator=generator) - 0.05
        self.alive = torch.ones(games, dtype=torch.bool)

    def push(self, right: torch.Tensor) -> torch.Tensor:
        """Push every cart; return which games were still going on before."""
        played = self.alive.clone()
        x, speed, angle, turning = self.state.unbind(1)
        force = torch.where(right, self.FORCE, -self.FORCE)
        total, sine, cosine = self.CART + self.POLE, angle.sin(), angle.cos()
        thrust = (force + self.POLE * self.HALF_LENGTH * turning**2 * sine) / total
        inertia = self.HALF_LENGTH * (4 / 3 - self.POLE * cosine**2 / total)
        turned = (self.GRAVITY * sine - cosine * thrust) / inertia
        pushed = thrust - self.POLE * self.HALF_LENGTH * turned * cosine / total
        change = torch.stack([speed, pushed, turning, turned], dim=1)
        self.state = self.state + self.TICK * change
        x, _, angle, _ = self.state.unbind(1)
        self.alive = played & (x.abs() < 2.4) & (angle.abs() < math.radians(12))
        return played


def play(policy: nn.Module, games: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Play `games` games; return the log-probability of every move and whether it was played, both moves × games."""
    world = CartPole(games, generator)
    chances, played = [], []
    while world.alive.any() and len(played) < LONGEST:
        logits = policy(world.state).squeeze(1)
        right = torch.rand(games, generator=generator) < logits.sigmoid()
        chances.append(nn.functional.logsigmoid(torch.where(right, logits, -logits)))
        played.append(world.push(right))
    return torch.stack(chances), torch.stack(played)


def loss_of(chances: torch.Tensor, played: torch.Tensor, discount: float = 0.99) -> torch.Tensor:
    """Return REINFORCE's loss: moves that were followed by more than the usual number of moves become more likely."""
    reward, later = played.float(), torch.zeros(played.shape[1])
    returns = torch.zeros_like(reward)
    for move in reversed(range(len(reward))):
        later = reward[move] + discount * later
        returns[move] = later
    of_played = returns[played]
    advantage = (returns - of_played.mean()) / (of_played.std() + 1e-6)
    return -(chances * advantage)[played].mean()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, default=1, help="games per worker and iteration")
    parser.add_argument(
        "--goal", type=float, default=150.0, help=f"moves of a mean game to wait for, at most {LONGEST}"
    )
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    if args.games < 1 or args.iterations < 1:
        parser.error(f"--games {args.games} --iterations {args.iterations}: both must be at least 1")
    if not 0 < args.goal <= LONGEST:
        parser.error(f"--goal {args.goal:g}: a game has 1 to {LONGEST} moves")
    return args


def main() -> None:
    args = arguments()
    run = shoal.start()
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr)
    policy, optimizer = run.join(policy, optimizer)
    generator = torch.Generator().manual_seed(1000 * run.worker_id + torch.initial_seed() % 1000)
    state = run.state(iteration=0)
    mean, reached = 0.0, None  # of this worker's own games
    while state.iteration < args.iterations:
        chances, played = play(policy, args.games, generator)
        loss_of(chances, played).backward()
        optimizer.step()
        optimizer.zero_grad()
        mean += 0.1 * (float(played.sum()) / args.games - mean)
        run.log(moves=mean)
        state.iteration += 1
        if reached is None and mean >= args.goal:
            reached = state.iteration
    run.report(moves=mean, iterations=reached or math.inf)
    if run.is_main:
        goal = f"after {reached} iterations" if reached else f"not in {args.iterations} iterations"
        print(f"{args.goal:g} moves a game {goal} with {run.size} workers; {mean:.0f} in the end")


if __name__ == "__main__":
    main()
