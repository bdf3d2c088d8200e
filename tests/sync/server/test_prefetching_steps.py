"""Values that travel while the next batch is loaded: less waiting, and nothing else changes. In virtual time."""

import pytest
import torch
from paced_world import PacedWorker, PacedWorld
from test_paces import alike, now_and_then, pace

DELAY, LOADING, STEPS = 0.2, 0.15, 60
MODES = {"bsp": "stale(0)", "ssp": "stale(2)", "async": "async"}


def trained(plan: str, seconds=alike) -> PacedWorld:  # type: ignore[no-untyped-def]
    world = PacedWorld(pace(plan), 4, seconds, delay=DELAY, loading=LOADING)
    return world.run(lambda worker: worker.train_dealt(STEPS))


def waited(world: PacedWorld) -> float:
    return sum(worker.servers.waited for worker in world.workers.values())


def with_prefetch(mode: str) -> str:
    return f"server, {mode}(prefetch=true)" if "(" not in mode else f"server, {mode[:-1]}, prefetch=true)"


@pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))
def test_geeps_half_of_the_waiting_for_pulls_goes_away_in_all_three_modes(mode: str) -> None:
    """Row 39. A reply takes 0.2 s, and 0.15 s pass between two steps."""
    plain, prefetched = trained(f"server, {mode}"), trained(with_prefetch(mode))
    assert waited(prefetched) <= 0.5 * waited(plain)
    assert prefetched.throughput > plain.throughput
    assert prefetched.updates == plain.updates == 4 * STEPS


@pytest.mark.parametrize("mode", ["stale(0)", "stale(2)"])
def test_the_bound_is_kept(mode: str) -> None:
    world = trained(with_prefetch(mode), now_and_then)
    assert max(world.staleness) <= int(mode[6])


def test_with_bound_0_all_values_are_those_without_prefetching() -> None:
    plain, prefetched = trained("server, stale(0)"), trained("geeps")
    for member, worker in prefetched.workers.items():
        worker.sync._adopt()  # type: ignore[attr-defined]
        assert torch.equal(worker.values, plain.workers[member].values)


@pytest.mark.parametrize("mode", ["stale(0)", "async"])
def test_what_a_script_changes_between_two_steps_stays_and_is_pushed(mode: str) -> None:
    """And a worker reads its own pushes."""
    world = PacedWorld(pace(with_prefetch(mode)), 1, alike, rate=0.0, delay=DELAY)

    def train(worker: PacedWorker) -> None:
        for step in range(3):
            worker.step(range(8))
            with torch.no_grad():
                worker.values += 1.0
            worker.sync.before_forward()
            assert torch.equal(worker.values, torch.full_like(worker.values, step + 1.0))
        worker.step(range(8))
        worker.sync.leave_round()

    world.run(train)
    assert world.host._shards[0].shard.state.values.tolist() == [3.0] * 16
