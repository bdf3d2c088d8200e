"""A server and its replica: nothing acknowledged is lost, nothing is applied twice, whichever process is killed."""

import numpy as np
import pytest
from replica_schedules import ReplicaWorld

from shoal.sync.server.messages import OpenRequest, PushRequest, StepDeadline, encode
from shoal.sync.server.replicated_host import ReplicatedHost


def run_schedules(seeds: range, linked: bool = False) -> None:
    kills = takeovers = 0
    for seed in seeds:
        world = ReplicaWorld(seed, linked).run()
        assert len(world.finished) + len(world.lost) == len(world.names), f"seed {seed}: a worker waits for ever"
        kills, takeovers = kills + world.killed, takeovers + world.roster.term
    assert kills > len(seeds) * (0.5 if linked else 1)  # between hosts nobody is left to be killed after the first
    assert takeovers > len(seeds) / 3


def test_acknowledged_pushes_survive_kills_of_either_process() -> None:
    run_schedules(range(1000))


def test_between_hosts_they_survive_too_though_the_launcher_says_who_the_members_are() -> None:
    """What it says, and what workers declare, are entries of the log: both processes judge each request alike."""
    run_schedules(range(300), linked=True)


def test_a_deadline_of_the_primary_is_an_entry_of_the_log() -> None:
    """The backup, whose own clock stands still, takes the same steps with the same pushes."""
    moment, replies = [0.0], list[str]()
    backup = ReplicatedHost(lambda *reply: None, lambda *word: None, is_primary=False, clock=lambda: 0.0)
    primary = ReplicatedHost(
        lambda member, number, reply, arrays: replies.append(f"{member} {getattr(reply, 'outcome', '')}"),
        lambda start, word, parts: primary.note_held(start, backup.take(word, parts).index),
        is_primary=True,
        clock=lambda: moment[0],
    )
    primary.begin_backup(1)
    opens = OpenRequest(0, "add", {}, 0, 1, ["a", "b"], StepDeadline(10.0))
    for number, member in enumerate(opens.members):
        primary.request(member, number, number, encode(opens), [memoryview(np.zeros(2, np.float32)).cast("B")])
    push = [memoryview(np.ones(2, np.float32)).cast("B")]
    primary.request("a", 2, 2, encode(PushRequest(0, 0.5)), push)
    primary.take_overdue()
    assert backup.host._shards[0].shard.state.round == 0
    moment[0] = 10.0
    primary.take_overdue()
    primary.request("b", 3, 3, encode(PushRequest(0, 0.5)), push)
    assert replies[-2:] == ["a APPLIED", "b DROPPED"]
    for host in (primary.host, backup.host):
        assert host._shards[0].shard.state.round == 1
        assert host._shards[0].shard.state.values.tolist() == [1, 1]


@pytest.mark.soak("simulator")
@pytest.mark.timeout(600)
def test_acknowledged_pushes_survive_kills_in_many_schedules() -> None:
    run_schedules(range(1000, 11_000))
    run_schedules(range(300, 3000), linked=True)
