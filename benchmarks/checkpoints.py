"""What checkpoints cost: the same training with and without, in turns, and what that means at the interval `auto`.

    python benchmarks/checkpoints.py [--rounds 5] [--steps 300] [--width 512]

Checkpoints are taken far more often than `auto` would, so that their cost stands out of the noise; the cost of one is
the time they added, divided by their number. `auto` waits sqrt(2 * cost * MTBF): its share of the time follows.
The goal is at most 2 %. Times are of processes of one machine whose cores all train: nothing is hidden by an idle core.
"""

import argparse
import json
import math
import statistics
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.record import worker_file
from shoal.testing import WorkerWorld, run_world
from shoal.train.checkpoint.interval import MTBF

CHECKPOINTS = 5


def train(world: WorkerWorld, checkpoint: str, steps: int, width: int, batch: int = 32) -> dict[str, torch.Tensor]:
    """Seconds of `steps` steps, and how many checkpoints were completed in them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = steps * batch * world.group.size
    data = TensorDataset(torch.randn(samples, 64), torch.randint(0, 10, (samples,)))
    run = world.start(checkpoint=checkpoint)
    model, optimizer, loader = run.join(model, optimizer, DataLoader(data, batch))
    world.group.gather(b"")
    began = time.perf_counter()
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - began
    run.close()
    events = [json.loads(line)["event"] for line in worker_file(run.dir, 0).read_text().splitlines()]
    return {"found": torch.tensor([seconds, events.count("saved")], dtype=torch.float64)}


def measure(workers: int, rounds: int, steps: int, width: int) -> torch.Tensor:
    """Rows of seconds without, seconds with, and the number of checkpoints; the two take turns in going first."""
    rows = []
    kinds = ("off", f"{max(1, steps // CHECKPOINTS)}steps")
    for turn in range(rounds):
        found = {}
        for kind in kinds[:: 1 if turn % 2 else -1]:
            found[kind] = run_world(workers, lambda w, k=kind: train(w, k, steps, width), seconds=600)[0]["found"]
        rows.append([found[kinds[0]][0], *found[kinds[1]]])
    return torch.tensor(rows, dtype=torch.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(args.workers, args.rounds, args.steps, args.width)
    costs = [(on - off) / number for off, on, number in rows.tolist() if number]
    cost = max(1e-6, statistics.median(costs))
    wait = math.sqrt(2 * cost * MTBF)
    parameters = 64 * args.width + args.width**2 + 10 * args.width
    ratio = statistics.median(on / off for off, on, _ in rows.tolist())
    print(f"{parameters / 1e6:.2f} M parameters with AdamW, {args.workers} workers, {args.steps} steps a turn")
    print(f"{rows[:, 2].mean():.1f} checkpoints a turn: {ratio:.3f} of the time without")
    print(f"one costs {cost * 1e3:.1f} ms (turns: {', '.join(f'{c * 1e3:.1f}' for c in costs)})")
    print(f"auto takes one every {wait:.1f} s: {cost / wait:.2%} of the training time (goal: at most 2 %)")


if __name__ == "__main__":
    main()
