"""What recording costs: a plain PyTorch loop of about 5 ms a step against the same loop joined to a run of one.

    python benchmarks/recording.py [--rounds 30] [--seconds 0.3]

Both take turns in one process, and processor time is compared, which a busy machine disturbs least. The ratio holds everything: hooks, clocks, events, layers; it should stay below 1.02.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from shoal.testing import World, run_world

WIDTH, BATCH, LAYERS = 256, 64, 8
"""Sixteen parameters, about 5 ms on one core."""


def stepper(world: World, recorded: bool) -> Callable[[int], float]:
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


def measure(world: World, rounds: int, seconds: float) -> dict[str, torch.Tensor]:
    pair = [stepper(world, False), stepper(world, True)]
    number = max(5, int(seconds / max(steps(10) for steps in pair)))
    times = torch.zeros(rounds, 2)
    for turn in range(rounds):
        for place in (0, 1) if turn % 2 else (1, 0):
            times[turn, place] = pair[place](number)
    return {"times": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    (result,) = run_world(1, lambda world: measure(world, args.rounds, args.seconds), seconds=600)
    plain, recorded = result["times"].unbind(1)
    low, middle, high = statistics.quantiles((recorded / plain).tolist(), n=4)
    print(f"plain {plain.median() * 1e3:.2f} ms, recorded {recorded.median() * 1e3:.2f} ms a step")
    print(f"recorded / plain {middle:.4f} (quartiles {low:.4f} to {high:.4f})")


if __name__ == "__main__":
    main()
