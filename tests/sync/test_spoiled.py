"""A worker's gradients are not finite, under a codec: all get NaN in their place, and nothing that is remembered is."""

import math

import pytest
import torch
from changing import changing

from shoal.plan.plan import Plan
from shoal.testing import WorkerWorld, run_world
from shoal.testing.exchange import fill, taken
from shoal.testing.world import Result
from shoal.train.build import EngineChooser, build_exchange
from shoal.wire import kernels
from shoal.wire.bucket import lay_out

kernels.warm()  # once here instead of once in every worker
SHAPES = {"w0": (70, 50), "w1": (33, 9), "b": (60,)}
SIZE, BAD, ROUNDS = 3, 1, 4
"""Workers; the one, and the round, with bad numbers; rounds."""
PLANS = [
    "fp16",
    "bf16",
    "int8",
    "lowrank(2)",
    "onebit",
    "onebit, meet(twostage)",
    "qsgd(4)",
    "dgc(0.1), by_size(0)",
    "topk(0.1), guard(0.9, every=2)",
    "order(largest, budget=4kb)",
]


def gradients(rank: int, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + number)
    return [torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def train(world: WorkerWorld, links: bool, plan: str, poison: float) -> Result:
    group, _ = changing(world, links)
    exchange = build_exchange(Plan.parse(plan), group, EngineChooser(group, world.dir))
    buckets = exchange.open(lay_out(gradients(0, 0), 1 << 10, list(SHAPES)))
    found: Result = {}
    for number in range(ROUNDS):
        values = gradients(group.rank, number)
        if group.rank == number == BAD:
            values[0][3, 4] = poison
        exchange.prepare()
        fill(buckets, values, 1 / SIZE)
        for index in range(len(buckets)):
            exchange.start(index)
        exchange.all_started()
        for index in range(len(buckets)):
            exchange.finish(index)
        for name, value in taken(buckets).items():
            found[f"{number}_{name}"] = value.clone()
        for bucket in buckets:
            bucket.reset()
        found |= {f"{number}_{name.replace('.', '_')}": t.clone() for name, t in exchange.state().items()}
    return found


@pytest.mark.parametrize(
    ("plan", "links"),
    [
        pytest.param(plan, links, marks=[] if number % 2 == links else [pytest.mark.soak])
        for number, plan in enumerate(PLANS)
        for links in (False, True)
    ],
)
def test_all_get_nan_once_and_remember_nothing_of_it(plan: str, links: bool) -> None:
    poison = math.inf if links else math.nan
    results = run_world(SIZE, lambda world: train(world, links, plan, poison))
    sums = [name for name in results[0] if name.split("_")[1] in ("0", "1", "2")]
    assert sums
    for name in sums:
        assert all(torch.equal(result[name].isnan(), results[0][name].isnan()) for result in results), name
        finite = [bool(result[name].isfinite().all()) for result in results]
        spoiled = name == f"{BAD}_0"
        assert finite == [not spoiled] * SIZE, name
        assert all(torch.equal(torch.nan_to_num(r[name]), torch.nan_to_num(results[0][name])) for r in results), name
    for result in results:
        assert all(bool(tensor.isfinite().all()) for name, tensor in result.items() if name not in sums)
    kept = [name for name in results[BAD] if name.startswith(f"{BAD}_residual_w0")]
    for name in kept:  # what it remembers of that layer is what it was before
        assert torch.equal(results[BAD][name], results[BAD][f"{BAD - 1}{name[1:]}"])
