"""Training with a plan for each part of a model: one model on all workers, and the same one where nothing is lost."""

from collections import OrderedDict

import pytest
import torch
from by_links import linked_by_files
from torch import nn

from shoal.core.errors import UsageError
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.run import Run
from shoal.wire import kernels

kernels.warm()  # once here instead of once in every worker
SAMPLES, STEPS = 12, 8
"""Of all workers in a step; steps."""


class Words(nn.Module):
    """Sparse and dense embeddings, a norm with statistics, a head, and a layer that no pass reaches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.rows = nn.Embedding(40, 6, sparse=True)
        self.embeddings = nn.Embedding(50, 6)
        self.norm, self.head, self.idle = nn.BatchNorm1d(6), nn.Linear(6, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.embeddings(x).mean(1) + self.rows(x % 40).mean(1)
        return self.head(self.norm(mean) if self.training else mean)


def steps(model: nn.Module, run: Run | None, rank: int, size: int) -> Result:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if run is not None:
        model, optimizer = run.join(model, optimizer)
    generator, own = torch.Generator().manual_seed(5), SAMPLES // size
    for _ in range(STEPS):
        x = torch.randint(0, 50, (SAMPLES, 4), generator=generator)[rank * own : (rank + 1) * own]
        y = torch.randint(0, 3, (SAMPLES,), generator=generator)[rank * own : (rank + 1) * own]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def by_plans(*plans: str, norm: bool = True) -> list[list[Result]]:
    """What both workers end with, for each plan."""

    def body(world: WorkerWorld) -> Result:
        found: Result = {}
        for number, plan in enumerate(plans):
            model = Words()
            model.norm = model.norm if norm else nn.Identity()  # type: ignore[assignment]
            run = world.start(plan, name=f"run{number}")
            found |= {f"{number}.{name}": tensor for name, tensor in steps(model, run, run.rank, 2).items()}
        return found

    results = run_world(2, body)
    return [
        [{name: t for name, t in result.items() if name.startswith(f"{number}.")} for result in results]
        for number in range(len(plans))
    ]


def far(left: Result, right: Result) -> float:
    """Names may begin with the numbers of two plans."""
    return max(float((a - b).abs().max()) for a, b in zip(left.values(), right.values(), strict=True))


def test_parts_with_the_same_plan_give_the_bits_of_one_plan() -> None:
    parted = "embeddings.*: allreduce; head.weight: allreduce; *: allreduce"
    plain, same, coded, alike = by_plans("allreduce", parted, "topk(0.05)", "rows.*: topk(0.05); *: topk(0.05)")
    assert far(plain[0], same[0]) == far(coded[0], alike[0]) == 0.0


def test_lossless_parts_over_links_equal_one_process() -> None:
    plan = "rows.*: allreduce(tree); embeddings.*: allreduce(ring), nonzero; *: allreduce(butterfly)"

    def body(world: WorkerWorld) -> Result:
        group = linked_by_files(world.group, world.dir)
        run = Run(WorkerContext(group, "run", world.dir / "run", plan, 0, begun=False), Plan.parse(plan))
        model = Words()
        model.norm = nn.Identity()  # type: ignore[assignment]  # its batches would differ
        return steps(model, run, group.rank, 3)

    one = Words()
    one.norm = nn.Identity()  # type: ignore[assignment]
    whole = steps(one, None, 0, 1)
    results = run_world(3, body)
    assert all(far(result, whole) < 1e-6 for result in results)
    assert far(results[0], results[2]) == 0.0


CODED = [
    "rows.*: onebit; embeddings.*: topk(0.05), int8; norm.*: allreduce; *: fp16",
    "embeddings.*: lowrank(1); head.*: dgc(ratio=0.1, momentum=0.5); *: int8, meet(twostage)",
    "embeddings.*: topk(0.1), guard(0.99, 2); head.*: topk(0.2), by_size(0), guard(0.9, 3); *: order(largest, 4kb)",
    "rows.*: topk(0.1); *: allreduce",
]
"""In the last one a part has sparse gradients alone, so its codec has nothing to do."""


def test_replicas_stay_one_model_through_the_codecs_of_all_parts() -> None:
    plain, *coded = by_plans("allreduce", *CODED)
    assert [far(*workers) for workers in coded] == [0.0] * len(CODED)
    assert all(0 < far(workers[0], plain[0]) < 0.1 for workers in coded[:-1])
    assert far(coded[-1][0], plain[0]) == 0.0


def train_two_joins(run: Run, rank: int) -> Result:
    """As a script with a generator and a critic: each has a part that the other lacks, and one pass reaches both."""
    models = []
    for name in ("generator", "critic"):
        torch.manual_seed(3)
        model = nn.Sequential(OrderedDict([(name, nn.Linear(5, 4)), ("out", nn.Linear(4, 1))]))
        models.append(run.join(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(rank))
    for _ in range(4):
        sum(model(x).mean() for model, _ in models).backward()
        for _, optimizer in models:
            optimizer.step()
            optimizer.zero_grad()
    return {"all": torch.cat([p.detach().view(-1) for model, _ in models for p in model.parameters()])}


def test_every_join_of_a_script_is_matched_and_a_pattern_must_be_of_use_in_one() -> None:
    plan = "generator.*: topk(0.2), by_size(0); critic.*: onebit, by_size(0); *: allreduce"

    def body(world: WorkerWorld) -> Result:
        found = train_two_joins(world.start(plan, name="good"), world.group.rank)
        with pytest.raises(UsageError, match=r"pattern 'nobody.\*' matches no parameter"):
            train_two_joins(world.start(f"nobody.*: fp16; {plan}", name="bad"), world.group.rank)
        return found

    one, two = run_world(2, body)
    assert torch.equal(one["all"], two["all"])
