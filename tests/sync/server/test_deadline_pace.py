"""What the paper promises of backup workers, in virtual time: the slowest are not waited for, and nothing is lost."""

import pytest
from paced_world import BATCH, PacedWorker, PacedWorld, Seconds

from shoal.sync.server.messages import StepDeadline
from shoal.sync.server.server_pace import ServerPace

BATCHES = 240


def slow_last(rank: int, step: int) -> float:
    return 4.0 if rank == 3 else 1.0


def taken(seconds: float, backups: int, adds: bool = False, speed: Seconds = slow_last) -> PacedWorld:
    pace = ServerPace(0, deadline=StepDeadline(seconds, backups, adds))
    return PacedWorld(pace, 4, speed, steps=30).run(lambda worker: worker.train_leased(BATCHES))


def unused(world: PacedWorld) -> int:
    return sum(worker.sync.server_totals.unused for worker in world.workers.values())


def step_seconds(world: PacedWorld) -> float:
    return world.ended / world.host._shards[0].shard.state.round


@pytest.mark.parametrize("adds", [False, True])
def test_with_one_backup_a_step_takes_as_long_as_the_three_fastest(adds: bool) -> None:
    """Each sample counts once: what a late step was made of is trained again, or counts in a later step."""
    world, waiting = taken(1000.0, 1, adds), taken(1000.0, 0)
    assert step_seconds(waiting) > 3.5
    assert step_seconds(world) < 1.3, "but for the ends of rounds, where the slow one's last step is waited for"
    assert world.counted == waiting.counted == BATCHES * BATCH
    made = sum(worker.made for worker in world.workers.values())
    late = sum(worker.sync.server_totals.late for worker in world.workers.values())
    assert late > 0
    assert unused(world) == (made - BATCHES) * BATCH == (0 if adds else late * BATCH)


def test_a_deadline_does_what_backups_do_and_waits_where_all_are_alike() -> None:
    """Half a second after the first: of the slow worker nothing, of equal ones all."""
    world, alike = taken(0.5, 0), taken(0.5, 0, speed=lambda rank, step: 1.0)
    assert step_seconds(world) < 1.8
    assert world.counted == alike.counted == BATCHES * BATCH
    assert unused(alike) == 0
    assert alike.host._shards[0].shard.state.round == BATCHES / 4


def test_backups_cost_what_they_throw_away_where_all_are_alike() -> None:
    """Chen et al.: every fourth gradient comes to nothing. Virtual time breaks ties by order, so one is always last."""
    world = taken(1000.0, 1, speed=lambda rank, step: 1.0 + rank / 100)
    assert unused(world) >= BATCHES * BATCH / 6
    assert world.counted == BATCHES * BATCH


def test_it_learns_what_waiting_for_all_learns_in_a_third_of_the_time() -> None:
    """The paper's direction, at equal samples."""
    waiting, world = taken(1000.0, 0), taken(1000.0, 1)
    assert world.loss() < 1.1 * waiting.loss()
    assert world.ended < waiting.ended / 2.5


def dies(worker: PacedWorker) -> None:
    """Three of ten stop in their sixth step, and nobody is told; one of those that stay is always late."""
    worker.train_dealt(5 if worker.rank >= 7 else 400, leaves=worker.rank < 7)


def test_bonawitz_a_third_dies_and_steps_are_taken_by_quorum_without_late_reports() -> None:
    """Row 42: a step commits once six of ten have reported, so training goes on before anybody is missed."""
    pace = ServerPace(0, deadline=StepDeadline(1000.0, 4))
    world = PacedWorld(pace, 10, lambda rank, step: 3.0 if rank == 0 else 1.0, rate=0.5, steps=10**6, target=2e-3)
    world.run(dies)
    assert world.done, "it comes to the loss"
    assert step_seconds(world) < 1.1
    slow = next(iter(world.workers.values()))
    assert slow.sync.server_totals.late > 0
