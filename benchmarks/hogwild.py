"""One copy in shared memory: `shared` with two processes against one process, PyTorch's own Hogwild, and two copies.

    python benchmarks/hogwild.py [--rounds 5] [--steps 400] [--models sparse,tagger,mlp] [--hold 1]

Each contestant trains the same samples: one process makes all steps, two make half of them each. In turns, on a sparse
model (an embedding of 20 features a sample, sparse gradients), on an LSTM that tags the words of made-up sentences, and
on an MLP (784-1024-1024-10), all with plain SGD.
PyTorch's own is `model.share_memory()` and a process for each worker, as in its documentation. Two copies are those of
Hogwild++: `shared(clusters=2)`, a process for each, which pass the token on after --hold steps.
"""

import argparse
import multiprocessing
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.core.clock import now
from shoal.testing.world import Result, WorkerWorld, run_world

WORKERS = 2
FEATURES, PICKED = 200_000, 20
WORDS, LENGTH, TAGS = 100, 12, 8


class SparseModel(nn.Module):
    """A linear model with one weight vector for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(FEATURES, 10, mode="sum", sparse=True)
        nn.init.zeros_(self.table.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)


class TaggerModel(nn.Module):
    """Names a tag for each word of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.tags = nn.Linear(64, TAGS)

    def forward(self, x: Tensor) -> Tensor:
        return self.tags(self.lstm(self.words(x))[0]).flatten(0, 1)


@dataclass(frozen=True)
class BenchmarkTask:
    """A model, its learning rate, and samples with labels that a linear rule gives."""

    name: str
    make: Callable[[], nn.Module]
    draw: Callable[[torch.Generator, int], tuple[Tensor, Tensor]]
    batch: int
    rate: float
    longer: int = 1
    """Times as many steps, as they are short."""


def draw_sparse(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    x = (FEATURES * torch.rand(count, PICKED, generator=generator) ** 3).long()  # some features are frequent
    return x, (x * 2654435761 % 1000003 % 10).mode(1).values


def draw_sentences(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """A word's tag follows from its own class and from that of the word before, but for one in ten."""
    x = torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    classes = x % TAGS
    before = torch.cat([torch.zeros(count, 1, dtype=torch.long), classes[:, :-1] % 2], 1)
    noise = torch.randint(0, TAGS, x.shape, generator=generator)
    tags = (classes + before) % TAGS
    return x, torch.where(torch.rand(x.shape, generator=generator) < 0.1, noise, tags).flatten()


def draw_dense(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    rule = torch.randn(784, 10, generator=torch.Generator().manual_seed(9))
    x = torch.randn(count, 784, generator=generator)
    return x, (x @ rule).argmax(1)


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


TASKS = (
    BenchmarkTask("sparse", SparseModel, draw_sparse, 256, 0.5, longer=4),
    BenchmarkTask("tagger", TaggerModel, draw_sentences, 32, 1.0, longer=2),
    BenchmarkTask("mlp", make_mlp, draw_dense, 128, 0.05),
)


Batches = list[tuple[Tensor, Tensor]]


class TrainedModel(NamedTuple):
    """What a training came to."""

    rate: float
    """Samples a second."""
    loss: float
    """On all batches."""
    accuracy: float
    """On as many others, drawn by the same rule."""


def draw_batches(task: BenchmarkTask, seed: int = 0) -> Batches:
    """Return the batches of all workers, which take turns in them."""
    generator = torch.Generator().manual_seed(seed)
    return [task.draw(generator, task.batch) for _ in range(40)]


def train(batches: Batches, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        x, y = batches[step % len(batches)]
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def final_loss(batches: Batches, model: nn.Module) -> float:
    with torch.no_grad():
        return statistics.mean(float(functional.cross_entropy(model(x), y)) for x, y in batches)


def accuracy(task: BenchmarkTask, model: nn.Module) -> float:
    with torch.no_grad():
        return statistics.mean(float((model(x).argmax(1) == y).float().mean()) for x, y in draw_batches(task, 1))


def prepare(task: BenchmarkTask) -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(4)
    return task.make()


def by_shoal(task: BenchmarkTask, steps: int, workers: int, plan: str) -> TrainedModel:
    batches = draw_batches(task)

    def body(world: WorkerWorld) -> Result:
        model = prepare(task)
        run = world.start(plan, checkpoint="off")
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=task.rate))
        own = batches[world.group.rank :: workers]
        world.group.gather(b"")
        began = now()
        train(own, model, optimizer, steps // workers)
        world.group.gather(b"")
        seconds = now() - began
        found = {"seconds": seconds, "loss": final_loss(batches, model), "accuracy": accuracy(task, model)}
        return {name: torch.tensor(value) for name, value in found.items()}

    found = run_world(workers, body, seconds=300)[0]
    return TrainedModel(steps * task.batch / float(found["seconds"]), float(found["loss"]), float(found["accuracy"]))


def by_torch(task: BenchmarkTask, steps: int) -> TrainedModel:
    """As `by_shoal`, with a model that torch shares between processes."""
    context = multiprocessing.get_context("fork")
    batches = draw_batches(task)
    model, meeting, told = prepare(task).share_memory(), context.Barrier(WORKERS), context.Queue()

    def work(rank: int) -> None:
        torch.set_num_threads(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=task.rate)
        meeting.wait()
        began = now()
        train(batches[rank::WORKERS], model, optimizer, steps // WORKERS)
        meeting.wait()
        if rank == 0:
            told.put((now() - began, final_loss(batches, model), accuracy(task, model)))

    processes = [context.Process(target=work, args=(rank,)) for rank in range(WORKERS)]
    for process in processes:
        process.start()
    seconds, loss, reached = told.get(timeout=300)
    for process in processes:
        process.join()
    return TrainedModel(steps * task.batch / seconds, loss, reached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--models", default=",".join(task.name for task in TASKS))
    parser.add_argument("--hold", type=int, default=1, help="steps before a cluster passes the token on")
    options = parser.parse_args()
    if unknown := set(options.models.split(",")) - {task.name for task in TASKS}:
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(task.name for task in TASKS)}")
    if min(options.rounds, options.hold) < 1 or options.steps < WORKERS:
        given = f"--rounds {options.rounds} --hold {options.hold} --steps {options.steps}"
        parser.error(f"{given}: at least 1, 1 and {WORKERS}")
    torch.set_num_threads(1)
    print(
        "| model | shared, 2 processes / one process | shared / PyTorch's share_memory | two clusters / shared "
        "| loss: one, shared, PyTorch, two clusters | accuracy |"
    )
    print("|---|---|---|---|---|---|")
    clusters = f"shared(clusters=2, hold={options.hold})"
    for task in [task for task in TASKS if task.name in options.models.split(",")]:
        steps = options.steps * task.longer
        rows = [
            (
                by_shoal(task, steps, 1, "alone"),
                by_shoal(task, steps, WORKERS, "shared"),
                by_torch(task, steps),
                by_shoal(task, steps, WORKERS, clusters),
            )
            for _ in range(options.rounds)
        ]
        over_one = _quartiles([shared.rate / one.rate for one, shared, _, _ in rows])
        over_torch = _quartiles([shared.rate / other.rate for _, shared, other, _ in rows])
        over_shared = _quartiles([ring.rate / shared.rate for _, shared, _, ring in rows])
        losses = ", ".join(f"{statistics.median(row[place].loss for row in rows):.4f}" for place in range(4))
        named = ", ".join(f"{statistics.median(row[place].accuracy for row in rows):.1%}" for place in range(4))
        print(f"| {task.name} | {over_one} | {over_torch} | {over_shared} | {losses} | {named} |", flush=True)


def _quartiles(values: list[float]) -> str:
    if len(values) == 1:
        return f"**{values[0]:.2f}**"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"**{middle:.2f}** ({low:.2f}–{high:.2f})"


if __name__ == "__main__":
    main()
