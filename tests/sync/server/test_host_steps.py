"""Two levels of steps at servers: a host is one worker to them, whichever of its own are killed, and when."""

import pytest
import torch
from host_world import SERVERS, HostWorld

STEPS = 3
ONE_HOST, TWO_HOSTS = (0, 0), (0, 0, 1)


def sent(world: HostWorld) -> list[int]:
    return [worker.servers.sent for worker in world.workers.values()]


@pytest.mark.parametrize("bound", [0, 2, None])
def test_every_change_counts_once_and_all_go_on_from_the_same_values(bound: int | None) -> None:
    world = HostWorld((0, 0, 1, 1), STEPS, bound)
    world.train()
    for server in range(SERVERS):
        assert torch.equal(world.counts(server), torch.ones(STEPS, 4))
        assert all(
            torch.equal(w.values[server].detach().view(STEPS, 4), world.counts(server)) for w in world.workers.values()
        )
    clocks = world.servers[0]._shards[0].shard.state.clocks
    assert clocks == {"w0.0": STEPS, "w2.0": STEPS}, "a host has one clock"


def test_what_travels_does_not_depend_on_how_many_workers_a_host_has() -> None:
    few, many = HostWorld((0,), STEPS), HostWorld((0, 0, 0), STEPS)
    for world in (few, many):
        world.train()
    assert sent(many) == [3 * sum(sent(few)), 0, 0], (
        "the changes are three times as long, because each worker has places"
    )


def moments(hosts: tuple[int, ...], member: str) -> int:
    """How many messages and flags a member has in all."""
    world = HostWorld(hosts, STEPS, dies=(member, 10**6))
    world.train()
    return 10**6 - world.moments


@pytest.mark.parametrize("hosts", [ONE_HOST, TWO_HOSTS])
@pytest.mark.parametrize("member", ["w0.0", "w1.0"])
def test_a_worker_that_is_killed_at_any_moment_leaves_whole_steps(hosts: tuple[int, ...], member: str) -> None:
    victim = int(member[1])
    for moment in range(moments(hosts, member)):
        world = HostWorld(hosts, STEPS, dies=(member, moment))
        world.train()
        told = {w.sync.steps_kept(member) for m, w in world.workers.items() if m in world.view}
        assert len(told) == 1, "all are told the same"
        wanted = torch.ones(STEPS, len(hosts))
        if member not in world.met:  # else it was lost after the round, which counts
            wanted[told.pop() :, victim] = 0
        for server in range(SERVERS):
            assert torch.equal(world.counts(server), wanted), f"killed after {moment} messages and flags"
