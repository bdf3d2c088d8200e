"""HogWild++: what a token does to copies, and clusters of real processes."""

import pytest
import torch
from test_lock_free import gradients, inputs, make

from shoal.sync.engine.chooser import EngineChooser
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.shared.cluster_ring import SETTLING, ClusterRingSynchronizer, pass_changes, passed_share
from shoal.sync.synchronizer import Part
from shoal.testing import SynchronizerCase
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.step_transaction import StepTransaction


def clustered(group, directory, clusters=2, steps=3):
    exchange = AllReduceExchange(group, EngineChooser(group, directory).of)
    return ClusterRingSynchronizer(exchange, group, steps, clusters)


class TestClusterRing(SynchronizerCase):
    synchronous = repeatable = False

    def make(self, group, directory):
        return clustered(group, directory)


@pytest.mark.parametrize("clusters", [2, 3, 5])
def test_zhang_a_change_of_one_cluster_comes_to_all_with_its_full_size(clusters: int) -> None:
    copies = [[torch.zeros(1)] for _ in range(clusters)]
    known = [[torch.zeros(1)] for _ in range(clusters)]
    copies[0][0] += 1.0
    for turn in range(SETTLING * clusters):
        own, following = turn % clusters, (turn + 1) % clusters
        pass_changes(copies[own], known[own], copies[following], passed_share(clusters))
    assert float(torch.stack([copy for (copy,) in copies]).mean()) == pytest.approx(1.0, abs=0.01)


def test_two_clusters_pass_on_the_share_of_the_paper() -> None:
    assert passed_share(2) == pytest.approx(0.618034, abs=1e-6)


def test_equal_copies_without_changes_stay_as_they_are() -> None:
    own, known, following = ([torch.full((3,), 2.0)] for _ in range(3))
    pass_changes(own, known, following, passed_share(4))
    assert torch.equal(torch.stack([*own, *known, *following]), torch.full((3, 3), 2.0))


def test_changes_reach_the_other_cluster_before_all_meet_and_then_all_are_equal() -> None:
    """Worker 0 makes all steps of the round, and worker 1 none: its copy moves all the same."""

    def body(world: WorkerWorld) -> Result:
        model, optimizer = make("sgd")
        synchronizer, session = clustered(world.group, world.dir, steps=1000), world.group.session
        names, parameters = zip(*model.named_parameters(), strict=True)
        synchronizer.open(Part(names, parameters, session, StepTransaction(session), optimizers=[optimizer]))
        start = parameters[0].detach().clone()
        if world.group.rank:
            synchronizer.skip_step()
        else:
            for x in inputs(9):
                gradients(model, x)
                synchronizer.before_step(optimizer)
                optimizer.step()
                synchronizer.after_step(optimizer)
        world.group.gather(b"")
        moved = parameters[0].detach() - start
        world.group.gather(b"")
        synchronizer.settle()
        return {"moved": moved, "end": parameters[0].detach().clone()}

    first, second = run_world(2, body)
    assert float(second["moved"].norm()) > 0
    assert torch.equal(first["end"], second["end"])
