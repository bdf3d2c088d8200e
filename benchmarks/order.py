"""`order(needed)` against `order(ready)`: a model with a large first layer, on two hosts of a lab with a slow line.

    python benchmarks/order.py [--lab "2 hosts, 100mbit"] [--rounds 4] [--steps 3] [--batch 4096] [--sleep 27]

Both plans live in the same processes and take turns, each with a model of its own; a turn has one step that does not
count. A step lasts from the return of one `optimizer.step()` to that of the next, so that each waits for as much as it
does in the middle of a training; what is still open at the end of a turn is settled outside of it. The floor is the
same step without any exchange. Ratios are of one round's turns.

With the default batch a step computes about half as long as its gradients travel; what can be hidden is the forward
pass, a third of that.

With `--sleep MS` the layers after the first sleep MS milliseconds forward and twice that backward instead of computing:
hosts of a lab share the cores of one machine, and of a busy one the times of computing tell little.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from report import Table, machine_line, write_report
from torch import Tensor, nn

from shoal.cli.warm import warm
from shoal.core.clock import now
from shoal.groups.links import LinkedGroup
from shoal.lab.inside import Say, inside
from shoal.lab.lab import NetworkLab
from shoal.lab.load import parse_lab
from shoal.lab.spec import LabSpec
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.train.run import Run
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair

PLANS = ("alone", "order(ready)", "order(needed)")
PORT = 7700
WORDS, WIDTH, LAYERS = 8192, 256, 10
"""2.1 M parameters in the first layer, 2.6 M in the others, which do the computing."""


class Sleep(torch.autograd.Function):
    """Takes the time of a layer, and gives its weight a gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, seconds: float) -> Tensor:
        ctx.gradient, ctx.seconds = torch.full_like(weight, 1e-3), seconds
        time.sleep(seconds)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], ctx.gradient, None


class Sleeping(nn.Linear):
    """A layer that does nothing, as slowly as one that computes."""

    def __init__(self, width: int, seconds: float) -> None:
        super().__init__(width, width, bias=False)
        self.seconds = seconds

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = Sleep.apply(hidden, self.weight, self.seconds)  # type: ignore[no-untyped-call]
        return found


class Model(nn.Module):
    """A bag of words, then layers of one width."""

    def __init__(self, sleep: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.widen = nn.Linear(WIDTH, 2 * WIDTH)
        kinds = (Sleeping(2 * WIDTH, sleep) if sleep else nn.Linear(2 * WIDTH, 2 * WIDTH) for _ in range(LAYERS))
        self.layers = nn.ModuleList(kinds)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.widen(self.words(words).mean(1))
        for layer in self.layers:
            hidden = torch.relu(layer(hidden)) + hidden
        return hidden


class Contestant:
    """One plan's model, trained as a script would."""

    def __init__(self, group: LinkedGroup, folder: Path, plan: str, batch: int, sleep: float) -> None:
        torch.manual_seed(0)
        name = f"run{PLANS.index(plan)}"
        self.run = Run(
            WorkerContext(group, name, folder / name, plan, 0, begun=False, checkpoint="off"), Plan.parse(plan)
        )
        model = Model(sleep)
        self.model, self.optimizer = self.run.join(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))
        self.words = torch.randint(WORDS, (batch, 4))

    def step(self) -> float:
        """When the step was made."""
        self.model(self.words).square().mean().backward()
        self.optimizer.step()
        moment = now()
        self.optimizer.zero_grad()
        return moment

    def turn(self, steps: int) -> float:
        """Mean seconds of a step."""
        moments = [self.step() for _ in range(steps + 1)]
        self.run._together.settle()
        return (moments[-1] - moments[0]) / steps


def worker(
    say: Say, folder: str, keys: list[tuple[str, str]], addresses: list[str], rank: int, options: list[float]
) -> None:
    """On one host: all plans in turns; says what a step of each turn took."""
    torch.set_num_threads(1)
    (rounds, steps, batch), sleep = map(int, options[:3]), options[3]
    book = {
        r: BookEntry(f"tcp://{address}:{PORT}", key[0].encode(), str(r))
        for r, (address, key) in enumerate(zip(addresses, keys, strict=True))
    }
    mine = CurveKeyPair(*(text.encode() for text in keys[rank]))
    group = LinkedGroup("benchmark", book, rank, LinkEndpoint(book[rank].address, mine))
    contestants = [Contestant(group, Path(folder), plan, batch, sleep) for plan in PLANS]
    for contestant in contestants:  # links learn their rate, and caches are filled
        contestant.turn(1)
    turns = []
    for _ in range(rounds):
        for contestant in contestants:
            group.gather(b"")
            turns.append(contestant.turn(steps))
    say(turns)
    for contestant in contestants:
        contestant.run.close()
    group.close()


def measure(spec: LabSpec, options: list[float]) -> list[list[float]]:
    """Seconds of a step by round and plan: those of the slower host."""
    keys = [CurveKeyPair.new() for _ in range(spec.size)]
    plain = [(k.public.decode(), k.secret.decode()) for k in keys]
    with tempfile.TemporaryDirectory() as folder, NetworkLab(spec) as lab, ExitStack() as stack:
        addresses = [host.address for host in lab.hosts]
        children = [
            stack.enter_context(inside(lab, r, worker, folder, plain, addresses, r, options)) for r in range(spec.size)
        ]
        heard = [msgspec.convert(child.hear(600.0), list[float]) for child in children]
    slower = [max(turn) for turn in zip(*heard, strict=True)]
    return [slower[at : at + len(PLANS)] for at in range(0, len(slower), len(PLANS))]


def spread(values: list[float], shown: Callable[[float], str]) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{shown(middle)} ({shown(low)}-{shown(high)})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lab", default="2 hosts, 100mbit")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--sleep", type=float, default=0.0, metavar="MS")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    batch = 16 if options.sleep else options.batch
    warm()
    machine, spec = machine_line(), parse_lab(options.lab)
    rounds = measure(spec, [options.rounds, options.steps, batch, options.sleep / 1e3])
    table = Table("lab", "batch", "rounds", "steps", "plan", "step ms", "of order(ready)", "of the floor")
    for place, plan in enumerate(PLANS):
        times = [turns[place] for turns in rounds]
        of = [[turns[place] / turns[base] for turns in rounds] for base in (1, 0)]
        cells = [spread(times, lambda s: f"{1e3 * s:.0f}"), *(spread(ratios, lambda r: f"{r:.3f}") for ratios in of)]
        table.add(options.lab, batch, options.rounds, options.steps, plan, *cells)
    if options.out:
        write_report(options.out, "order", "Gradients in the order they are needed", [machine], table)


if __name__ == "__main__":
    main()
