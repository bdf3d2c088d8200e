"""`mix(butterfly)`: the conformance case, exact means after log2 p steps, and the sum that mixing leaves as it is."""

import math

import pytest
import torch
from by_links import linked_by_files
from hypothesis import given
from hypothesis import strategies as st

from shoal.sync.engine.algorithms.pair import find_partner
from shoal.sync.mix.butterfly import ButterflyMixingSynchronizer
from shoal.sync.mix.pairs import PairExchange
from shoal.testing import SynchronizerCase, WorkerWorld, run_world
from shoal.testing.synchronizer import SynchronizerDriver


def mixing(group, steps=64):
    return ButterflyMixingSynchronizer(PairExchange(group), steps)


class TestInMemory(SynchronizerCase):
    """Meetings in between, too."""

    synchronous = False

    def make(self, group, directory):
        return mixing(group, steps=4)


class TestOverLinks(SynchronizerCase):
    synchronous = False
    made = 0

    def make(self, group, directory):
        self.made += 1
        folder = directory / f"links-{self.made}"
        folder.mkdir(exist_ok=True)
        return mixing(linked_by_files(group, folder))


@given(st.integers(0, 1000), st.integers(1, 70))
def test_partners_agree_on_each_other(step, workers):
    for place in range(workers):
        partner = find_partner(step, place, workers)
        assert partner is None or (partner != place and find_partner(step, partner, workers) == place)


@given(st.integers(1, 70))
def test_after_a_cycle_and_a_few_steps_everybody_has_something_of_everybody(workers):
    """After log2 p steps where p is a power of two; elsewhere after twice as many at the most."""
    held, bits = [{place} for place in range(workers)], max(1, (workers - 1).bit_length())
    for step in range(bits if workers.bit_count() == 1 else 2 * bits):
        partners = [find_partner(step, place, workers) for place in range(workers)]
        held = [held[n] | (held[p] if p is not None else set()) for n, p in enumerate(partners)]
    assert all(len(each) == workers for each in held)


def mixed(world: WorkerWorld, group, steps: int) -> dict[str, torch.Tensor]:
    """Parameters that differ by worker, after so many steps without gradients."""
    driver = SynchronizerDriver(mixing(group), group)
    generator = torch.Generator().manual_seed(world.group.rank)
    with torch.no_grad():
        for parameter in driver.model.parameters():
            parameter.copy_(torch.randint(-1000, 1000, parameter.shape, generator=generator))
    found = {f"{name} before": value for name, value in driver.parameters().items()}
    for _ in range(steps):
        driver.skip()
    return {**found, **driver.parameters(), "sent": torch.tensor(driver.synchronizer.exchange.observer.wire_bytes)}


@pytest.mark.parametrize("workers", [2, 4, 3])
@pytest.mark.parametrize("linked", [False, True])
def test_replicas_are_the_exact_mean_after_log2_p_steps_and_the_sum_stays(workers, linked):
    steps = math.ceil(math.log2(workers))

    def body(world: WorkerWorld):
        return mixed(world, linked_by_files(world.group, world.dir) if linked else world.group, steps)

    results = run_world(workers, body)
    for name in [name for name in results[0] if f"{name} before" in results[0]]:
        before = torch.stack([result[f"{name} before"] for result in results]).double()
        after = torch.stack([result[name] for result in results]).double()
        assert torch.equal(before.sum(0), after.sum(0)), name
        if workers != 3:
            assert torch.equal(after, before.mean(0).expand_as(after)), name
    if linked and workers == 4:  # one array a step, and a few words
        size = sum(value.numel() * 4 for name, value in results[0].items() if f"{name} before" in results[0])
        assert all(steps * size <= int(result["sent"]) <= steps * (size + 200) for result in results)


def test_a_replica_that_is_not_finite_is_mended_by_its_partner():
    def body(world: WorkerWorld):
        driver = SynchronizerDriver(mixing(world.group), world.group)
        if world.group.rank == 1:
            torch.nn.init.constant_(driver.model.trunk.weight, math.nan)
        driver.skip()
        return driver.parameters()

    first, second = run_world(2, body)
    assert first["trunk.weight"].isfinite().all()
    assert all(torch.equal(first[name], value) for name, value in second.items())


def test_who_mixes_while_others_meet_is_told_why():
    def body(world: WorkerWorld):
        driver = SynchronizerDriver(mixing(world.group), world.group)
        driver.skip()
        with pytest.raises(Exception, match="make a step of every batch"):
            driver.skip() if world.group.rank else driver.synchronizer.settle()
        return {}

    run_world(2, body)
