"""`datagrams` between real workers: the conformance case, sums at meetings, and what has come before one."""

import time

import pytest
import torch
from by_links import linked_by_files

from shoal.core.clock import Deadline
from shoal.core.errors import PayloadError
from shoal.sync.datagrams.rounds import DatagramRoundsSynchronizer, read_port
from shoal.sync.engine.chooser import EngineChooser
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.testing import SynchronizerCase, WorkerWorld, run_world
from shoal.testing.synchronizer import SynchronizerDriver


def by_datagrams(group, folder, steps=64):
    return DatagramRoundsSynchronizer(AllReduceExchange(group, EngineChooser(group, folder).of), group, steps, 12.5e6)


class TestOnOneHost(SynchronizerCase):
    """Meetings in between, too. What comes before one depends on the moment; three workers' steps would be too large
    for the case."""

    sizes = (2, 2)
    synchronous = repeatable = False

    def make(self, group, directory):
        return by_datagrams(group, directory, steps=2)


@pytest.mark.parametrize("linked", [False, True])
def test_changes_come_before_the_meeting_and_the_meeting_adds_up_all(linked):
    def body(world: WorkerWorld):
        group = linked_by_files(world.group, world.dir) if linked else world.group
        driver = SynchronizerDriver(by_datagrams(group, world.dir), group)
        weight, deadline = driver.model.trunk.weight, Deadline.after(60)
        start = weight.detach().clone()
        driver.skip()  # the round begins
        with torch.no_grad():
            weight.add_(2**group.rank)
        driver.skip()
        while (weight - start - 7).abs().max() > 1e-4 and not deadline.expired:
            time.sleep(0.01)
            driver.synchronizer._take_in()
        before = (weight.detach() - start).clone()
        driver.synchronizer.settle()
        return {"before": before, "after": weight.detach() - start, **driver.parameters()}

    results = run_world(3, body)
    for result in results:
        torch.testing.assert_close(result["before"], torch.full_like(result["before"], 7.0))
        torch.testing.assert_close(result["after"], torch.full_like(result["after"], 7.0))
        assert all(torch.equal(result[name], results[0][name]) for name in result if name != "before")


def test_a_replica_that_is_not_finite_goes_on_with_the_sum_of_the_others():
    def body(world: WorkerWorld):
        driver = SynchronizerDriver(by_datagrams(world.group, world.dir), world.group)
        driver.skip()
        with torch.no_grad():
            driver.model.trunk.weight.add_(float("nan") if world.group.rank == 1 else 1.0)
        driver.skip()
        driver.synchronizer.settle()
        return driver.parameters()

    first, second = run_world(2, body)
    assert first["trunk.weight"].isfinite().all()
    assert all(torch.equal(first[name], value) for name, value in second.items())


@pytest.mark.parametrize("said", [b"", b"[1]", b'[0,"' + b"A" * 44 + b'"]', b'[70000,""]', b'[7,"AAAA"]'])
def test_a_port_that_no_member_has_is_refused(said):
    with pytest.raises(PayloadError, match="datagrams"):
        read_port(said)
