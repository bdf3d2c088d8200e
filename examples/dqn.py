"""Deep Q-learning with several actors: every worker plays games of its own, and all learn one Q-network.

    python examples/dqn.py
    shoal run --workers 4 --plan "server, every(1)" examples/dqn.py
    shoal run --workers 4 --plan "server, async" examples/dqn.py --game catch

An iteration makes one move in each of `--games` games, then one step on `--batch` moves of this worker's memory. The
network is a double one with a target (van Hasselt et al. 2016); the setting of Rao et al. 2019, *Distributed Deep
Reinforcement Learning*: weights on a parameter server, learners with the same hyper-parameters everywhere. More workers
make more moves, and learn from more of them, in an iteration. An iteration of every worker counts as one until greedy
games come to the goal. The script draws its batches itself, so it keeps its counter in `run.state`.
"""

import argparse
import copy
import math
from collections import deque
from typing import Protocol

import torch
from cartpole import LONGEST, CartPole
from torch import Tensor, nn

import shoal

DISCOUNT = 0.99
MEMORY = 20_000
"""Moves that a worker remembers."""
WARM = 1000
"""Moves of all workers, at random, before the first step."""
EXPLORE = 4_000
"""Moves of all workers over which random ones become rare."""
RARE = 0.05
TARGET = 50
"""Steps from one copy of the network into the target to the next."""
LOOK, TRIALS = 25, 16
"""Iterations between trials, and the games of one."""


class Games(Protocol):
    """Several games at once; each begins again when it is over."""

    observations: int
    actions: int
    goal: float
    """The mean score of greedy games that solves it: moves until the end, or what a game returns."""
    longest: int

    @property
    def seen(self) -> Tensor: ...

    def move(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return rewards, what was seen after the move, which games were lost or won by it, and which are over."""


class Balance:
    """A cart balances a pole: -1 when it falls, as Barto, Sutton and Anderson had it in 1983.

    With a point for every move instead, values go up to 100 and take most of the training to get there.
    """

    observations, actions, longest = 4, 2, LONGEST
    goal = 0.75 * LONGEST

    def __init__(self, games: int, generator: torch.Generator) -> None:
        self._generator, self._world = generator, CartPole(games, generator)
        self._moves = torch.zeros(games)

    @property
    def seen(self) -> Tensor:
        return self._world.state

    def move(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self._world.push(actions == 1)
        self._moves += 1
        after, fallen = self._world.state, ~self._world.alive
        over = fallen | (self._moves >= self.longest)
        fresh = CartPole(len(over), self._generator)
        self._world.state = torch.where(over[:, None], fresh.state, after)
        self._world.alive = fresh.alive
        self._moves[over] = 0
        return -fallen.float(), after, fallen, over


class Catch:
    """A ball falls through a grid and a paddle below has to be there: +1 or -1 at the end (Osband et al. 2020)."""

    ROWS, COLUMNS = 10, 5
    observations, actions, goal, longest = ROWS * COLUMNS, 3, 0.9, ROWS - 1

    def __init__(self, games: int, generator: torch.Generator) -> None:
        self._generator = generator
        self._row = torch.zeros(games, dtype=torch.int64)
        self._ball = torch.randint(self.COLUMNS, (games,), generator=generator)
        self._paddle = torch.full((games,), self.COLUMNS // 2)

    @property
    def seen(self) -> Tensor:
        grid = torch.zeros(len(self._row), self.ROWS, self.COLUMNS)
        games = torch.arange(len(self._row))
        grid[games, self._row, self._ball] = 1.0
        grid[games, self.ROWS - 1, self._paddle] = 1.0
        return grid.flatten(1)

    def move(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self._paddle = (self._paddle + actions - 1).clamp(0, self.COLUMNS - 1)
        self._row += 1
        after, over = self.seen, self._row == self.ROWS - 1
        reward = torch.where(over, torch.where(self._ball == self._paddle, 1.0, -1.0), 0.0)
        fresh = torch.randint(self.COLUMNS, (len(over),), generator=self._generator)
        self._row[over], self._ball = 0, torch.where(over, fresh, self._ball)
        self._paddle[over] = self.COLUMNS // 2
        return reward, after, over, over


GAMES: dict[str, type[Balance] | type[Catch]] = {"cartpole": Balance, "catch": Catch}


class ReplayMemory:
    """The newest moves of this worker."""

    def __init__(self, observations: int) -> None:
        self._before, self._after = torch.zeros(MEMORY, observations), torch.zeros(MEMORY, observations)
        self._action, self._reward = torch.zeros(MEMORY, dtype=torch.int64), torch.zeros(MEMORY)
        self._discount, self._next, self.size = torch.zeros(MEMORY), 0, 0

    def add(self, before: Tensor, action: Tensor, reward: Tensor, after: Tensor, lost: Tensor) -> None:
        places = (self._next + torch.arange(len(action))) % MEMORY
        self._before[places], self._after[places] = before, after
        self._action[places], self._reward[places] = action, reward
        self._discount[places] = torch.where(lost, 0.0, DISCOUNT)
        self._next, self.size = int(places[-1]) + 1, min(MEMORY, self.size + len(action))

    def draw(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        chosen = torch.randint(self.size, (batch,), generator=generator)
        kept = (self._before, self._action, self._reward, self._after, self._discount)
        return tuple(each[chosen] for each in kept)


def loss_of(network: nn.Module, target: nn.Module, moves: tuple[Tensor, ...]) -> Tensor:
    """Return the loss of double Q-learning: the network chooses the next move, the target says what it is worth."""
    before, action, reward, after, discount = moves
    with torch.no_grad():
        best = network(after).argmax(1, keepdim=True)
        worth = reward + discount * target(after).gather(1, best).squeeze(1)
    return nn.functional.smooth_l1_loss(network(before).gather(1, action[:, None]).squeeze(1), worth)


@torch.no_grad()
def try_out(network: nn.Module, kind: type[Balance] | type[Catch], seed: int) -> float:
    """Return the mean score of greedy games."""
    games = kind(TRIALS, torch.Generator().manual_seed(seed))
    total, going = torch.zeros(TRIALS), torch.ones(TRIALS, dtype=torch.bool)
    for _ in range(games.longest):
        reward, _, _, over = games.move(network(games.seen).argmax(1))
        total += going * (1.0 if kind is Balance else reward)
        going &= ~over
        if not going.any():
            break
    return float(total.mean())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", choices=GAMES, default="cartpole")
    parser.add_argument("--games", type=int, default=1, help="games per worker")
    parser.add_argument("--batch", type=int, default=16, help="moves per worker and step")
    parser.add_argument("--iterations", type=int, default=6000, help="to give up after")
    parser.add_argument("--lr", type=float, default=0.001)
    args = parser.parse_args()
    if min(args.games, args.batch, args.iterations) < 1:
        parser.error("--games, --batch and --iterations must be at least 1")
    return args


def main() -> None:
    args = arguments()
    run = shoal.start()
    torch.set_num_threads(1)  # threads of so small a network only wait for each other
    kind = GAMES[args.game]
    network = nn.Sequential(
        nn.Linear(kind.observations, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, kind.actions)
    )
    network, optimizer = run.join(network, torch.optim.Adam(network.parameters(), lr=args.lr))
    target, memory = copy.deepcopy(network), ReplayMemory(kind.observations)
    generator = torch.Generator().manual_seed(1000 * run.worker_id + torch.initial_seed() % 1000)
    games = kind(args.games, generator)
    state = run.state(iteration=0)
    trials, solved = deque[float](maxlen=3), None
    while state.iteration < args.iterations and solved is None:
        made = state.iteration * args.games * run.size
        rare = max(RARE, 1.0 - max(0, made - WARM) / EXPLORE)
        before = games.seen
        with torch.no_grad():
            action = network(before).argmax(1)
        random = torch.rand(args.games, generator=generator) < rare
        action = torch.where(random, torch.randint(kind.actions, (args.games,), generator=generator), action)
        reward, after, lost, _ = games.move(action)
        memory.add(before, action, reward, after, lost)
        state.iteration += 1
        if made < WARM:
            continue
        loss_of(network, target, memory.draw(args.batch, generator)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if state.iteration % TARGET == 0:
            target.load_state_dict(network.state_dict())
        if state.iteration % LOOK == 0:
            mean = try_out(network, kind, state.iteration)
            run.log(score=mean)
            trials.append(mean)
            if len(trials) == 3 and sum(trials) / 3 >= kind.goal:
                solved = state.iteration
    run.report(iterations=solved or math.inf)
    if run.is_main:
        print(f"{args.game} solved after {solved} iterations with {run.size} workers" if solved else "not solved")


if __name__ == "__main__":
    main()
