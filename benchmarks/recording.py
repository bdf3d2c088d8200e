"""What recording costs a step: a plain PyTorch loop against the same loop joined to a run of one.

    python benchmarks/recording.py [--rounds 200] [--seconds 0.01]

The cost holds everything: hooks, clocks, events, layers. It does not depend on how long the layers compute, so tiny
ones show it best. Both loops take turns in one process; of processor time the fastest turns are compared, which a busy
machine disturbs least. The goal is less than 2 % of a step of 5 ms: 100 microseconds.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

from shoal.testing import WorkerWorld, run_world

WIDTH, BATCH, LAYERS = 8, 4, 8
STEP_SECONDS = 0.005
FASTEST = 0.1
"""The share of turns that is compared."""


def stepper(world: WorkerWorld, recorded: bool) -> Callable[[int], float]:
    """A function that makes n steps and returns their mean duration in seconds."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if recorded:
        model, optimizer = world.start("alone").join(model, optimizer)
    x = torch.randn(BATCH, WIDTH)

    def steps(number: int) -> float:
        began = time.process_time()
        for _ in range(number):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.process_time() - began) / number

    return steps


def measure(world: WorkerWorld, rounds: int, seconds: float) -> dict[str, torch.Tensor]:
    pair = [stepper(world, False), stepper(world, True)]
    number = max(5, int(seconds / max(steps(10) for steps in pair)))
    times = torch.zeros(rounds, 2)
    for turn in range(rounds):
        for place in (0, 1) if turn % 2 else (1, 0):
            times[turn, place] = pair[place](number)
    return {"times": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.01, help="length of a turn")
    args = parser.parse_args()
    torch.set_num_threads(1)
    (result,) = run_world(1, lambda world: measure(world, args.rounds, args.seconds), seconds=600)
    number = max(1, int(FASTEST * args.rounds))
    plain, recorded = result["times"].sort(0).values[:number].mean(0).tolist()
    cost = recorded - plain
    print(f"plain {plain * 1e6:.0f} µs, recorded {recorded * 1e6:.0f} µs a step of {2 * LAYERS} parameters")
    print(f"recording costs {cost * 1e6:.0f} µs a step: {cost / STEP_SECONDS:.1%} of {STEP_SECONDS * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
