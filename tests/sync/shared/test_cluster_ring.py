"""HogWild++: what a token does to the copies of clusters, in virtual time; then clusters of real processes."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_lock_free import gradients, inputs, make
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.sync.engine.chooser import EngineChooser
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.shared.cluster_ring import ClusterRingSynchronizer, TokenRing
from shoal.sync.synchronizer import Part
from shoal.testing import SynchronizerCase
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.step_transaction import StepTransaction

START, TENSORS = 100.0, 3


def ring_of(clusters: int) -> TokenRing:
    """Of tensors of a few elements, all alike."""
    values = lambda: [torch.full((2,), START) for _ in range(TENSORS)]  # noqa: E731
    ring = TokenRing(*([values() for _ in range(clusters)] for _ in range(2)), values(), np.zeros(8, np.int64))
    ring.begin()
    return ring


class DuringOperation(TorchDispatchMode):
    """Does something before the operation of this number, as another process would."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        super().__init__()
        self.left, self.act = number, act

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        if self.left == 0:
            self.act()
        return func(*args, **(kwargs or {}))


class KilledError(Exception):
    """The worker that passes the token on ends here."""


@pytest.mark.parametrize("clusters", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(8))
def test_each_step_is_added_once_and_whole_whatever_the_token_does(clusters: int, seed: int) -> None:
    """Steps are whole numbers, made at any moment, also in the middle of a pass over the holder's copy."""
    draw, ring, order, made = random.Random(seed), ring_of(clusters), list(range(clusters)), 0

    def step() -> None:
        nonlocal made
        size, cluster = draw.randint(-9, 9), draw.randrange(clusters)
        made += size
        for tensor in ring.copies[cluster]:
            tensor += size

    for _ in range(50):
        step()
        if draw.random() < 0.6:
            with DuringOperation(draw.randint(1, 5 * TENSORS), step):
                ring.pass_on(order)
    ring.agree(order)
    for copy in [*ring.copies, *ring.known]:
        assert all(torch.equal(tensor, torch.full((2,), START + made)) for tensor in copy)


@pytest.mark.parametrize("clusters", [2, 3, 8])
def test_copies_that_rest_are_equal_after_two_rounds_of_the_token(clusters: int) -> None:
    ring, order = ring_of(clusters), list(range(clusters))
    for cluster, copy in enumerate(ring.copies):
        copy[0] += 2**cluster
    for _ in range(2 * clusters):
        ring.pass_on(order)
    assert all(torch.equal(copy[0], torch.full((2,), START + 2**clusters - 1)) for copy in ring.copies)


def effects(clusters: int, pass_on: Callable[[list[float], list[float], int], None]) -> list[float]:
    """What a step of size one adds to all copies in the end, by how far the token is from it."""
    found = []
    for cluster in range(clusters):
        copies, known = [0.0] * clusters, [0.0] * clusters
        copies[cluster] = 1.0
        for turn in range(400 * clusters):
            pass_on(copies, known, turn % clusters)
        found.append(sum(copies) / clusters)
    return found


def test_zhang_a_step_counts_once_wherever_the_token_is_and_by_the_papers_weights_it_does_not() -> None:
    clusters, beta = 2, (5**0.5 - 1) / 2
    scale = 1 - beta

    def by_paper(copies: list[float], known: list[float], own: int) -> None:
        following, change = (own + 1) % clusters, copies[own] - known[own]
        mixed = scale * copies[following] + (1 - scale) * copies[own] + (beta + scale - 1) * change
        copies[following] += beta * change
        copies[own] = known[own] = mixed

    def by_ring(copies: list[float], known: list[float], own: int) -> None:
        copies[own] = known[own] = known[own - 1] + copies[own] - known[own]

    assert effects(clusters, by_paper) == pytest.approx([1.0, 1.236], abs=1e-3)
    assert effects(clusters, by_ring) == [1.0, 1.0]


@pytest.mark.parametrize("number", range(1, 4 * TENSORS + 1))
def test_a_worker_that_is_killed_with_the_token_costs_at_most_its_clusters_last_change_of_one_tensor(
    number: int,
) -> None:
    ring, order = ring_of(3), [0, 1, 2]

    def step(cluster: int, size: float) -> None:
        for tensor in ring.copies[cluster]:
            tensor += size

    for cluster in (0, 1, 2, 0):
        step(cluster, 10.0**cluster)
        ring.pass_on(order)
    step(1, 5000.0)
    step(2, 70000.0)

    def kill() -> None:
        raise KilledError

    with pytest.raises(KilledError), DuringOperation(number, kill):
        ring.pass_on(order)
    ring.agree(order)
    total = START + 2 * 1.0 + 10.0 + 100.0 + 5000.0 + 70000.0
    found = [float(tensor[0]) for tensor in ring.agreed]
    assert sorted(found) == [total - 5000.0] + [total] * (TENSORS - 1)
    assert all(torch.equal(copy[n], ring.agreed[n]) for copy in ring.copies for n in range(TENSORS))


def test_who_agrees_and_is_killed_leaves_the_next_one_the_same_values() -> None:
    for number in range(1, 60):
        ring, order = ring_of(2), [0, 1]
        for cluster in order:
            ring.copies[cluster][1] += cluster + 1

        def kill() -> None:
            raise KilledError

        try:
            with DuringOperation(number, kill):
                ring.agree(order)
        except KilledError:
            ring.agree(order)
        assert all(torch.equal(copy[1], torch.full((2,), START + 3)) for copy in [*ring.copies, *ring.known])


def test_clusters_that_nobody_is_left_of_are_passed_by() -> None:
    ring = ring_of(3)
    ring.copies[2][0] += 1
    assert ring.holder([0, 2]) == 0
    ring.pass_on([0, 2])
    assert ring.holder([0, 2]) == 2
    ring.agree([0, 2])
    assert torch.equal(ring.copies[1][0], torch.full((2,), START + 1))


def clustered(group, directory, clusters=2, steps=3, hold=1):
    exchange = AllReduceExchange(group, EngineChooser(group, directory).of)
    return ClusterRingSynchronizer(exchange, group, steps, clusters, hold)


class TestClusterRing(SynchronizerCase):
    synchronous = repeatable = False

    def make(self, group, directory):
        return clustered(group, directory)


def test_a_change_reaches_the_other_cluster_before_all_meet_and_then_all_are_equal() -> None:
    """Worker 0 makes all steps of the round; when worker 1 has the token, its copy takes in those before the pass."""

    def body(world: WorkerWorld) -> Result:
        model, optimizer = make("sgd")
        synchronizer, session = clustered(world.group, world.dir, steps=1000, hold=2), world.group.session
        names, parameters = zip(*model.named_parameters(), strict=True)
        synchronizer.open(Part(names, parameters, session, StepTransaction(session), optimizers=[optimizer]))

        def step(x: Tensor) -> None:
            gradients(model, x)
            synchronizer.before_step(optimizer)
            optimizer.step()
            synchronizer.after_step(optimizer)

        rows = inputs(9)
        if world.group.rank:
            synchronizer.skip_step()
        else:
            for x in rows:
                step(x)
        world.group.gather(b"")
        if world.group.rank:
            for _ in range(2):  # then it passes the token on, and so takes in what it has missed
                synchronizer.skip_step()
        world.group.gather(b"")
        before = [p.detach().clone() for p in parameters]
        world.group.gather(b"")
        synchronizer.settle()
        return {f"{when}{n}": p.detach().clone() for when, ps in (("before", before), ("end", parameters))
                for n, p in enumerate(ps)}  # fmt: skip

    model, optimizer = make("sgd")
    due = []
    for x in inputs(9):
        gradients(model, x)
        optimizer.step()
        due.append([p.detach().clone() for p in model.parameters()])
    first, second = run_world(2, body)
    for n in range(len(due[0])):
        torch.testing.assert_close(second[f"before{n}"], due[1][n])  # worker 0 passed the token on after two steps
        torch.testing.assert_close(first[f"end{n}"], due[-1][n])
        assert torch.equal(first[f"end{n}"], second[f"end{n}"])
