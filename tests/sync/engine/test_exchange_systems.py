"""Bytes and seconds of the classical exchanges, on sockets: rows 5, 7, 8 and 11 of docs/systems.toml."""

import math
import os
import statistics

import numpy as np
import pytest
import torch
from by_links import linked_by_files
from forked import soon

from shoal.core.clock import now
from shoal.groups.links import LinkedGroup
from shoal.plan.plan import Plan
from shoal.plan.terms import AllReduceTerm
from shoal.sync.engine.algorithms.tree import TreeAllReduce
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.build import EngineChooser, build_exchange
from shoal.transport.rate_limit import BANDWIDTH_VARIABLE
from shoal.wire import kernels
from shoal.wire.bucket import lay_out

kernels.warm()  # once here instead of once in every worker
SIDE = 1024
SIZE = 4 * SIDE * SIDE


def left(group: LinkedGroup) -> int:
    """Bytes that went to this worker's peers so far; its own sum may be there before all that others need has left."""
    links = [group.mesh.link(rank).out for rank in group.mesh.view.others]
    assert soon(60.0, lambda: not any(link.waiting for link in links))
    return sum(link.delivered + link.under_way for link in links)


def steps(world: WorkerWorld, group: LinkedGroup, plan: str, side: int, count: int) -> Result:
    """The exchanges of some steps, of one square layer: seconds and bytes of each, and the last mean."""
    said = Plan.parse(plan)
    by = said.exchange.by if isinstance(said.exchange, AllReduceTerm) else "auto"
    exchange = build_exchange(said, group, EngineChooser(group, world.dir, by))
    (bucket,) = exchange.open(lay_out([torch.zeros(side, side)], 1 << 30, ["w"]))
    # whole numbers: their sum has the same bits in whatever order it is made
    gradient = torch.randint(-9, 9, (side, side), generator=torch.Generator().manual_seed(group.rank)).float()
    seconds, sizes = [], []
    for _ in range(count):
        group.gather(b"")
        before, began = left(group), now()
        exchange.prepare()
        bucket.put(0, gradient, exchange.weight)
        exchange.start(0)
        exchange.all_started()
        exchange.finish(0)
        seconds.append(now() - began)
        sizes.append(left(group) - before)
        mean = bucket.views[0].clone()
        bucket.reset()
    return {"seconds": torch.tensor(seconds), "bytes": torch.tensor(sizes), "mean": mean}


def linked(plan: str, workers: int, side: int, count: int, rate: str = "") -> list[Result]:
    def body(world: WorkerWorld) -> Result:
        os.environ[BANDWIDTH_VARIABLE] = rate
        return steps(world, linked_by_files(world.group, world.dir), plan, side, count)

    return run_world(workers, body, seconds=100.0)


@pytest.mark.parametrize("workers", [3, 4])
def test_ring_each_worker_sends_almost_twice_the_bytes_however_many_there_are(workers: int) -> None:
    """Gibiansky 2017; Patarasu & Yuan 2009: 2 (p-1)/p of them."""
    for result in linked("bsp", workers, SIDE, 2):
        assert result["bytes"].tolist() == pytest.approx([2 * (workers - 1) / workers * SIZE] * 2, rel=0.01)


@pytest.mark.soak("clock")
@pytest.mark.timeout(600)
def test_ring_eight_workers_take_a_fifth_longer_than_four_at_the_most() -> None:
    """In theory 7/8 over 3/4, a sixth longer. Every worker may send two megabytes a second; rounds in turns."""
    times: dict[int, list[float]] = {4: [], 8: []}
    for _ in range(3):
        for workers, found in times.items():
            results = linked("bsp", workers, SIDE, 3, "16mbit")
            found += torch.stack([result["seconds"] for result in results]).amax(0).tolist()[1:]
    assert statistics.median(times[8]) <= 1.2 * statistics.median(times[4])


def in_turns(plans: tuple[str, str], side: int, count: int, rounds: int, rate: str = "") -> tuple[float, float]:
    """Median seconds until the last of eight workers has the mean, by plan; the means are the same."""
    found: dict[str, list[float]] = {plan: [] for plan in plans}
    for _ in range(rounds):
        means = []
        for plan, seconds in found.items():
            results = linked(plan, 8, side, count, rate)
            seconds += torch.stack([result["seconds"] for result in results]).amax(0).tolist()[1:]
            means += [result["mean"] for result in results]
        assert all(torch.equal(mean, means[0]) for mean in means)
    first, second = (statistics.median(seconds) for seconds in found.values())
    return first, second


@pytest.mark.soak("clock")
@pytest.mark.timeout(600)
def test_tree_takes_less_time_than_the_ring_for_small_tensors() -> None:
    """Agarwal et al. 2014: 6 steps instead of 14 for 64 KB among eight workers."""
    tree, ring = in_turns(("allreduce(tree)", "allreduce(ring)"), side=128, count=40, rounds=3)
    assert tree < ring, (tree, ring)


@pytest.mark.parametrize("workers", range(2, 33))
def test_a_tree_is_as_deep_as_the_logarithm_of_its_workers(workers: int) -> None:
    def depth(place: int) -> int:
        return 1 + depth(TreeAllReduce.parent(place)) if place else 0

    places = range(workers)
    assert max(map(depth, places)) == (workers).bit_length() - 1 <= math.ceil(math.log2(workers))
    children = [child for place in places for child in TreeAllReduce.children(place, workers)]
    assert sorted(children) == list(range(1, workers))


@pytest.mark.soak("clock")
@pytest.mark.timeout(600)
def test_firecaffe_a_tree_takes_half_the_time_of_one_server_at_the_most() -> None:
    """Iandola et al. 2016: eight workers that may each send two megabytes a second; a star's middle is the server."""
    tree, star = in_turns(("allreduce(tree)", "allreduce(star)"), side=512, count=3, rounds=3, rate="16mbit")
    assert tree <= 0.5 * star, (tree, star)


def connected(workers: int) -> int:
    """Bytes of all workers in one exchange in which everybody sends to everybody: an exact codec, gathered."""

    def body(world: WorkerWorld) -> Result:
        group = linked_by_files(world.group, world.dir)
        summed, sent = (steps(world, group, plan, 40, 1) for plan in ("bsp", "nonzero, meet(gather)"))
        torch.testing.assert_close(sent["mean"], summed["mean"])
        return sent

    return sum(int(result["bytes"]) for result in run_world(workers, body))


def test_fully_connected_everybody_sends_to_everybody_and_the_mean_is_the_all_reduces() -> None:
    assert connected(3) == pytest.approx(3 * connected(2), rel=0.01)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_fully_connected_bytes_grow_with_the_square_of_the_workers() -> None:
    squares = np.square(np.arange(2.0, 9.0))
    totals = np.array([connected(workers) for workers in range(2, 9)])
    fitted = squares * (squares @ totals) / (squares @ squares)
    error = np.square(totals - fitted).sum() / np.square(totals - totals.mean()).sum()
    assert 1 - error > 0.99
