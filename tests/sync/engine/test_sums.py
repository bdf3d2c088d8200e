"""Every way to add up over links: right, the same bits for all, of any size and dtype, and what leaves stays."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from by_links import linked_by_files
from torch import Tensor

from shoal.core.errors import UsageError
from shoal.sync.engine.algorithms.base import DtypeArithmetic
from shoal.sync.engine.algorithms.butterfly import ButterflyAllReduce
from shoal.sync.engine.algorithms.direct import DirectSum
from shoal.sync.engine.algorithms.reduce_scatter_gather import ReduceScatterGather
from shoal.sync.engine.algorithms.ring import RingAllReduce
from shoal.sync.engine.algorithms.tree import ChainAllReduce, StarAllReduce, TreeAllReduce, edge_tree
from shoal.sync.engine.links import LinkEngine, choose_algorithm
from shoal.sync.sum_cost import EXTRA, MIDDLE
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.transport.messages import CHUNK
from shoal.wire.bucket import BucketSpace

NUMELS = (0, 1, 2, 5, CHUNK // 4 - 1, CHUNK // 4 * 3 + 1, 70_001)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64)


def tensor(rank: int, numel: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + numel)
    drawn = torch.randn(numel, generator=generator, dtype=torch.float64) * 10
    return drawn.to(dtype) if not dtype.is_complex else torch.complex(drawn, -drawn).to(dtype)


def close(dtype: torch.dtype) -> dict[str, float]:
    """Half precision is rounded once, at the end; the others lose a bit or two."""
    tolerance = {torch.float16: 6e-4, torch.bfloat16: 5e-3, torch.float64: 1e-14}.get(dtype, 1e-5)
    return {"rtol": tolerance, "atol": tolerance}


EVERY_DTYPE = (DirectSum, ReduceScatterGather)
EDGES = "0-1:1-2"
TREES = (TreeAllReduce, ChainAllReduce, StarAllReduce, edge_tree("3-1:0-1:2-1"))


# five workers make the rounds of four and one more that takes no part in them, so four add little
@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.soak), 5])
def test_all_ways_all_sizes_all_dtypes(size: int) -> None:
    def body(world: WorkerWorld) -> Result:
        mesh = linked_by_files(world.group, world.dir).mesh
        results, tasks = {}, []
        for kind in (*EVERY_DTYPE, RingAllReduce, *TREES, ButterflyAllReduce):
            for dtype in DTYPES if kind in EVERY_DTYPE else (torch.float32, torch.float64):
                for numel in NUMELS:
                    leaving = tensor(mesh.rank, numel, dtype)
                    result, arithmetic = torch.zeros_like(leaving), DtypeArithmetic(dtype)
                    task = kind(arithmetic.array(leaving), arithmetic.array(result), arithmetic)
                    mesh.submit(task)
                    tasks.append((task, leaving, result, f"{kind.kind} {str(dtype)[6:]} {numel}"))
        for task, leaving, result, name in tasks:  # all were under way at once
            mesh.wait(task, 60.0)
            assert torch.equal(leaving, tensor(mesh.rank, leaving.numel(), leaving.dtype)), "what left has changed"
            results[name] = result.to(torch.complex128 if result.is_complex() else torch.float64)
        return results

    results = run_world(size, body)
    for name, mine in results[0].items():
        dtype = getattr(torch, name.split()[1])
        parts = [tensor(rank, mine.numel(), dtype).to(mine.dtype) for rank in range(size)]
        torch.testing.assert_close(mine, sum(parts), **close(dtype))
        for theirs in results[1:]:
            assert torch.equal(mine, theirs[name]), f"workers hold different bits of {name}"
        if name.startswith("ring"):  # engines choose between the two by the clock: results must not depend on it
            assert torch.equal(mine, results[0][name.replace("ring", "owners")]), f"the ways differ in {name}"


@pytest.mark.parametrize(
    ("size", "dtype", "workers", "kind"),
    [
        (4, torch.float32, 4, DirectSum),
        (EXTRA // 2, torch.float32, 4, DirectSum),
        (EXTRA, torch.float32, 4, ReduceScatterGather),
        (MIDDLE, torch.float64, 3, ReduceScatterGather),
        (MIDDLE + 4, torch.float32, 3, RingAllReduce),
        (2 * MIDDLE, torch.bfloat16, 3, ReduceScatterGather),
        (2 * MIDDLE, torch.float32, 2, DirectSum),
        (2 * MIDDLE, torch.bfloat16, 2, DirectSum),
    ],
)
def test_the_way_follows_from_what_all_know(size: int, dtype: torch.dtype, workers: int, kind: type) -> None:
    assert choose_algorithm(torch.empty(size // dtype.itemsize, dtype=dtype), workers) is kind


@pytest.mark.parametrize(
    ("by", "kind"),
    [
        ("ring", RingAllReduce),
        ("owners", ReduceScatterGather),
        ("straight", DirectSum),
        ("tree", TreeAllReduce),
        ("chain", ChainAllReduce),
        ("star", StarAllReduce),
        ("butterfly", ButterflyAllReduce),
    ],
)
def test_the_plan_may_say_the_way(by: str, kind: type) -> None:
    assert choose_algorithm(torch.empty(4), 4, by) is kind is choose_algorithm(torch.empty(MIDDLE), 4, by)
    assert choose_algorithm(torch.empty(4, dtype=torch.bfloat16), 4, by) is (
        kind if by == "straight" else ReduceScatterGather
    )


def test_what_cannot_travel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"torch\.bool"):
        DtypeArithmetic(torch.bool)
    engine = LinkEngine(SimpleNamespace(new_channel=lambda: 1))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--trusted"):
        engine.open([BucketSpace(1, torch.float32, torch.device("meta"))])


@pytest.mark.parametrize(
    ("by", "lost"),
    [("auto", 2), ("tree", 0), ("tree", 2), ("chain", 1), ("star", 0), ("butterfly", 0), ("butterfly", 2), (EDGES, 1)],
)
def test_an_exchange_that_was_aborted_can_be_repeated(by: str, lost: int) -> None:
    """A worker leaves before it takes part, the root of a tree too; the others repeat the same start without it."""

    def body(world: WorkerWorld) -> Result:
        group = linked_by_files(world.group, world.dir)
        engine, rank = LinkEngine(group, algorithm=by), group.rank
        ((leaving, result),) = engine.open([BucketSpace(MIDDLE, torch.float32, torch.device("cpu"))])
        leaving.fill_(rank + 1.0)
        if rank == lost:
            return {}
        engine.start(0)
        group.mesh.abort(f"worker {lost} has left")
        group.mesh.reform(1, [each for each in range(3) if each != lost])
        engine.start(0)
        engine.finish(0)
        return {"result": result}

    results = run_world(3, body)
    assert len([result for result in results if result]) == 2
    for result in results:
        assert not result or (result["result"] == 6.0 - (lost + 1)).all()
