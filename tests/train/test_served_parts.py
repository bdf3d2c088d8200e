"""Parts of a model on servers beside parts in lock-step: tables, embeddings and dense parameters."""

import re

import pytest
import torch
from by_servers import run_served
from torch import nn

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.rules import check
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.run import Run
from shoal.train.served_embedding import ServedEmbedding

SAMPLES, STEPS, WORDS = 12, 8, 60
BOUND = "words.*: server(shards=2), stale(0); *: allreduce"


class TableModel(nn.Module):
    """A table and a head."""

    def __init__(self, words: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.head = words, nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x).mean(1))


def table(rule: str = "adagrad") -> ServedEmbedding:
    return ServedEmbedding(WORDS, 5, rule=rule, rate=0.2, seed=3)


def train(model: nn.Module, run: Run, rank: int, size: int, rate: float = 0.1, meets: bool = False) -> Result:
    """`meets`: nobody is ahead of the others' pushes, whatever the bound."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model, optimizer = run.join(model, optimizer)
    generator, own = torch.Generator().manual_seed(5), SAMPLES // size
    for _ in range(STEPS):
        x = torch.randint(0, WORDS, (SAMPLES, 4), generator=generator)[rank * own : (rank + 1) * own]
        y = torch.randint(0, 3, (SAMPLES,), generator=generator)[rank * own : (rank + 1) * own]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if meets:
            run.barrier()
    run.barrier()
    with torch.no_grad():
        model(torch.arange(4)[None])  # brings dense parameters up to date
        rows = model.words(torch.arange(WORDS))
    return {"rows": rows.clone()} | {n: t.detach().clone() for n, t in model.head.named_parameters()}


def alone(make: object, rate: float = 0.1) -> Result:
    def body(world: WorkerWorld) -> Result:
        return train(TableModel(make()), world.start(), 0, 1, rate)  # type: ignore[operator]

    return run_world(1, body)[0]


def served(plan: str, make: object, size: int = 2, rate: float = 0.1) -> list[Result]:
    return run_served(
        size,
        plan,
        lambda world, start: train(TableModel(make()), start(), world.group.rank, size, rate),  # type: ignore[operator]
    )


def far(left: Result, right: Result) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


@pytest.mark.parametrize("rule", ["adagrad", "sgd"])
def test_a_table_within_the_bound_equals_one_process(rule: str) -> None:
    one = alone(lambda: table(rule))
    for worker in served(BOUND, lambda: table(rule)):
        assert far(worker, one) < 1e-6


def test_an_asynchronous_table_loses_no_push() -> None:
    """Sums of what all pushed, in any order: gradients of this loss do not depend on the values."""

    def body(world: WorkerWorld, start: object) -> Result:
        model = nn.Module()
        model.words, model.bias = table("sgd"), nn.Linear(1, 1)  # type: ignore[assignment]
        run = start()  # type: ignore[operator]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        run.join(model, optimizer)
        for step in range(STEPS):
            x = torch.tensor([step, 7, 8 + world.group.rank])
            (model.words(x).sum() * 5.0 + model.bias(torch.ones(1)).sum()).backward()  # type: ignore[operator]
            optimizer.step()
            optimizer.zero_grad()
        run.barrier()
        with torch.no_grad():
            return {"rows": model.words(torch.arange(10))}  # type: ignore[operator]

    plan = "words.*: server(shards=2), async; *: allreduce"
    first, second = run_served(2, plan, body)
    assert torch.equal(first["rows"], second["rows"])
    counts = torch.tensor([2.0] * 7 + [2.0 * STEPS + 2, STEPS, STEPS])  # row 7 is every worker's in every step
    lost = run_world(1, fresh_rows)[0]["rows"] - first["rows"]
    assert torch.allclose(lost, (0.2 * 5.0 * 0.5 * counts)[:, None].expand(10, 5), atol=1e-5)


def fresh_rows(world: WorkerWorld) -> Result:
    model = TableModel(table())
    run = world.start()
    run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with torch.no_grad():
        return {"rows": model.words(torch.arange(10))}


@pytest.mark.parametrize("sparse", [True, False])
def test_an_ordinary_embedding_within_the_bound_equals_one_process(sparse: bool) -> None:
    def make() -> nn.Embedding:
        torch.manual_seed(2)
        return nn.Embedding(WORDS, 5, sparse=sparse)

    one = alone(make)
    for worker in served(BOUND, make):
        assert far(worker, one) < 1e-6


def test_dense_parameters_may_lie_on_servers_too() -> None:
    plan = "head.*: server, stale(0); *: allreduce"
    one = alone(lambda: nn.Embedding(WORDS, 5, _weight=torch.ones(WORDS, 5)))
    for worker in served(plan, lambda: nn.Embedding(WORDS, 5, _weight=torch.ones(WORDS, 5))):
        assert far(worker, one) < 1e-6


def test_a_rule_of_the_servers_makes_the_steps_of_a_part() -> None:
    def make() -> nn.Embedding:
        return nn.Embedding(WORDS, 5, _weight=torch.ones(WORDS, 5), sparse=True)

    plan = "words.*: server, async(rule=sgd, rate=0.1); *: allreduce"
    one = alone(make)
    made = run_served(2, plan, lambda w, start: train(TableModel(make()), start(), w.group.rank, 2, meets=True))
    for worker in made:
        assert far(worker, one) < 1e-6


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("a: server; *: fp16", "'every(1)' with 'server' in part 'a': a part on servers pushes and pulls by itself"),
        ("a: server, async; *: server(shards=2), async", "a run has one set of servers"),
        ("a: server, async; *: server, stale(2)", "all parts lie on servers"),
        ("a: server(replicas=2), async; *: allreduce", "write replicas=1"),
        ("a: server, async, topk(0.1); *: allreduce", "its rows travel as they are"),
        ("a: server, stale(2, eager=true); *: allreduce", "write stale(2)"),
        ("a: server, async(samples=leased); *: allreduce", "write async"),
        ("a: server, async; *: allreduce, order(needed)", "remove the order"),
    ],
)
def test_what_a_part_on_servers_cannot_be_is_refused(plan: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check(Plan.parse(plan), 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_embeddings": 0}, "num_embeddings=0"),
        ({"rule": "adam"}, "servers know sgd, adagrad"),
        ({"rate": 0.0}, "must be above 0"),
        ({"seed": -1}, "give a seed of 0 or more"),
    ],
)
def test_bad_arguments_of_a_table_are_named(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        ServedEmbedding(**{"num_embeddings": 4, "embedding_dim": 2, "rate": 0.1} | arguments)  # type: ignore[arg-type]


def test_a_table_needs_servers_and_a_run() -> None:
    with pytest.raises(UsageError, match=re.escape("call run.join(model, optimizer) first")):
        table()(torch.tensor([1]))

    def body(world: WorkerWorld) -> None:
        model = TableModel(table())
        with pytest.raises(UsageError, match=re.escape("write 'words.*: server, async; *: allreduce'")):
            world.start("allreduce, fp16").join(model, torch.optim.SGD(model.parameters(), lr=0.1))

    run_world(2, body)
