"""Step time against PyTorch's DDP and against the floor (the same step without any communication).

    python benchmarks/steps.py [--workers 2,4] [--models mlp,cnn,transformer] [--rounds 15] [--seconds 0.5]

All contestants live in the same worker processes and take turns, round by round, so that what else the machine does
hits them alike; figures are medians of the ratios of one round. Speed belongs here and never into a test.
"""

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from models import MODELS
from report import Table, machine_line, write_report
from torch import nn

from shoal.groups.shared_memory import SharedGroup
from shoal.testing import WorkerWorld, run_world

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
CONTESTANTS = ("floor", "barrier", "ddp", "shoal")
WARM = 5


def stepper(contestant: str, model_name: str, world: WorkerWorld) -> Callable[[int], float]:
    """A function that makes n steps of a freshly built model and returns their mean duration in seconds."""
    torch.manual_seed(0)
    model, loss = MODELS[model_name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if contestant == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        run = world.start("" if contestant == "shoal" else "alone, every(1)", name=f"{model_name}-{contestant}")
        model, optimizer = run.join(model, optimizer)

    meet = barrier(world.group) if contestant == "barrier" else lambda: None

    def steps(number: int) -> float:
        began = time.perf_counter()
        for _ in range(number):
            loss(model).backward()
            meet()
            optimizer.step()
            optimizer.zero_grad()
        return (time.perf_counter() - began) / number

    return steps


def barrier(group: SharedGroup) -> Callable[[], None]:
    """Waiting for each other and nothing else: what synchrony itself costs."""
    flags = np.frombuffer(group.region(8 * group.size), np.int64)[: group.size]
    turns = itertools.count(1)

    def meet() -> None:
        turn = next(turns)
        group.patience.publish(flags, turn)
        group.patience.until(flags, turn)

    return meet


def measure(world: WorkerWorld, model: str, threads: int, rounds: int, seconds: float) -> dict[str, torch.Tensor]:
    torch.set_num_threads(threads)
    store = dist.FileStore(str(world.dir / "store"), world.group.size)
    dist.init_process_group("gloo", store=store, rank=world.group.rank, world_size=world.group.size)
    contestants = {name: stepper(name, model, world) for name in CONTESTANTS}
    pace = torch.tensor([max(steps(WARM) for steps in contestants.values())])
    dist.all_reduce(pace, dist.ReduceOp.MAX)
    number = max(3, int(seconds / pace.item()))
    times = torch.zeros(rounds, len(CONTESTANTS))
    for turn in range(rounds):
        order = list(enumerate(contestants.values()))
        for place, steps in order if turn % 2 else order[::-1]:
            dist.barrier()
            times[turn, place] = steps(number)
    dist.destroy_process_group()
    return {"times": times}


def spread(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.3f} ({low:.3f}–{high:.3f})"


def compare(model: str, workers: int, rounds: int, seconds: float, table: Table) -> None:
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    results = run_world(workers, lambda world: measure(world, model, threads, rounds, seconds), seconds=1800)
    times = torch.stack([result["times"] for result in results]).mean(0)
    floor, meeting, ddp, shoal = times.unbind(1)
    table.add(
        model,
        workers,
        f"{floor.median() * 1e3:.1f}",
        f"{ddp.median() * 1e3:.1f}",
        f"{shoal.median() * 1e3:.1f}",
        spread((shoal / floor).tolist()),
        spread((shoal / ddp).tolist()),
        spread((ddp / floor).tolist()),
        spread((meeting / floor).tolist()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a contestant's turn")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "reports")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        "model",
        "workers",
        "floor ms",
        "DDP ms",
        "Shoal ms",
        "Shoal / floor",
        "Shoal / DDP",
        "DDP / floor",
        "barrier / floor",
    )
    for model in args.models.split(","):
        for workers in map(int, args.workers.split(",")):
            compare(model, workers, args.rounds, args.seconds, table)
    write_report(
        args.out,
        "steps",
        "Step time against DDP and the floor",
        [
            "Median step time; ratios are medians over rounds (quartiles in parentheses), contestants interleaved.",
            "Barrier: the floor with an empty barrier at the end of each backward pass: what synchrony itself costs.",
            "Floor: the same step with no communication at all. DDP: gloo on loopback, default buckets, same threads.",
            machine_line(),
        ],
        table,
    )


if __name__ == "__main__":
    main()
