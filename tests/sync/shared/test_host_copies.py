"""A copy on each host and averages between hosts: rounds of local steps where hosts have one worker, conserved where
they have several, and what a killed worker has left in its host's copy is known to all."""

from collections.abc import Sequence

import pytest
import torch
from changing_hosts import changing_hosts
from forked import soon
from torch import Tensor, nn

from shoal.membership.session import member_name
from shoal.plan.plan import Plan
from shoal.sync.engine.chooser import EngineChooser
from shoal.sync.synchronizer import EqualWeights, Part
from shoal.sync.trained import TrainedSamples
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.build import build_exchange
from shoal.train.members import JoinedMembers
from shoal.train.step_transaction import StepTransaction
from shoal.train.synchronizers import build_synchronizer

ROWS, STEPS, ROUNDS = 6, 4, 3


class WorkersTrained(EqualWeights):
    """Every worker was leased one sample a step."""

    def __init__(self, session, rank: int) -> None:
        super().__init__(session)
        self.rank, self.batches = rank, 0

    def leased_from(self, place: int) -> list[TrainedSamples]:
        first = 100 * self.rank
        return [TrainedSamples((0, 0, 0), [(first + n, first + n + 1)]) for n in range(place, self.batches)]


class CopyTraining:
    """A table of which every worker moves rows of its own, under a synchronizer that is driven by hand."""

    def __init__(self, world: WorkerWorld, plan: str, hosts: Sequence[str], rate: float = 1.0) -> None:
        self.rank = world.group.rank
        group, self.session = changing_hosts(world, hosts, self.rank)
        self.table = nn.Embedding(ROWS * len(hosts), 3, sparse=True)
        nn.init.zeros_(self.table.weight)
        self.optimizer = torch.optim.SGD(self.table.parameters(), lr=rate)
        chosen, engines = Plan.parse(plan), EngineChooser(group, world.dir)
        exchange = build_exchange(chosen, group, engines)
        self.synchronizer = build_synchronizer(chosen, exchange, engines, JoinedMembers([self.table]))
        self.weights = WorkersTrained(self.session, self.rank)
        part = Part(
            ["weight"],
            [self.table.weight],
            self.session,
            StepTransaction(self.session),
            self.weights,
            sparse=[0],
            optimizers=[self.optimizer],
        )
        self.synchronizer.open(part)

    def step(self, rows: Tensor) -> None:
        self.weights.batches += 1
        self.optimizer.zero_grad()
        self.table(rows).sum().backward()
        self.synchronizer.before_step(self.optimizer)
        self.optimizer.step()
        self.synchronizer.after_step(self.optimizer)

    def own_rows(self, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.rank + number)
        return ROWS * self.rank + torch.randint(0, ROWS, (5,), generator=generator)


def counts(training: CopyTraining, numbers: range) -> Tensor:
    found = torch.zeros(len(training.table.weight))
    for number in numbers:
        found += torch.bincount(training.own_rows(number), minlength=len(found))
    return found


@pytest.mark.parametrize("outer", ["average", "diloco"])
def test_with_one_worker_a_host_it_is_local_to_the_bit(outer: str) -> None:
    def body(world: WorkerWorld, exchange: str) -> Result:
        training = CopyTraining(world, f"{exchange}, local({STEPS}, {outer})", ("a", "b"), 0.1)
        for number in range(STEPS * ROUNDS):
            training.step(training.own_rows(number))
        training.synchronizer.settle()
        return {"table": training.table.weight.detach().clone()}

    copies, replicas = (run_world(2, lambda world, by=by: body(world, by)) for by in ("shared", "allreduce"))
    for copy, replica in zip(copies, replicas, strict=True):
        assert torch.equal(copy["table"], replica["table"])
        assert copy["table"].abs().max() > 0


def test_with_one_host_it_is_shared() -> None:
    def body(world: WorkerWorld) -> Result:
        found = {}
        for plan in ("shared(steps=4)", "shared, local(4)"):
            chosen, engines = Plan.parse(plan), EngineChooser(world.group, world.dir)
            exchange, members = build_exchange(chosen, world.group, engines), JoinedMembers([torch.nn.Linear(1, 1)])
            made = build_synchronizer(chosen, exchange, engines, members)
            found[type(made).__name__, made.steps] = None
        assert len(found) == 1, found
        return {}

    run_world(2, body)


@pytest.mark.parametrize("hosts", ["aabb", "aab"])
def test_the_mean_of_all_hosts_holds_every_update_of_theirs(hosts: str) -> None:
    """Rows are apart and updates are whole numbers: a host's change is what its workers made, by their weights."""

    def body(world: WorkerWorld) -> Result:
        training = CopyTraining(world, f"shared, local({STEPS})", hosts)
        for number in range(STEPS * ROUNDS):
            training.step(training.own_rows(number))
        return {"table": training.table.weight.detach().clone(), "counts": counts(training, range(STEPS * ROUNDS))}

    results = run_world(len(hosts), body)
    share = {name: hosts.count(name) / len(hosts) for name in hosts}
    due = -sum(share[name] * result["counts"] for name, result in zip(hosts, results, strict=True))
    for result in results:
        assert torch.equal(result["table"], results[0]["table"])
        torch.testing.assert_close(result["table"], due[:, None].expand(-1, 3))


@pytest.mark.parametrize("leased", [False, True])
def test_all_know_what_a_lost_worker_has_left_in_its_copy(leased: bool) -> None:
    """Worker 1, of host a, is lost after two steps of a round: its host carries them, and both hosts count them."""
    hosts, kept = "aabb", 2
    plan = f"shared, local({STEPS}{', samples=leased' if leased else ''})"

    def body(world: WorkerWorld) -> Result:
        training = CopyTraining(world, plan, hosts)
        made = kept if training.rank == 1 else STEPS - leased  # leased rounds are closed by hand
        for number in range(made):
            training.step(training.own_rows(number))
            if number + 1 == kept and training.rank == 1:
                (world.dir / "left").touch()
                return {"counts": counts(training, range(kept))}
            if number + 1 == kept:
                assert soon(30, (world.dir / "left").exists)
                training.session.change([member_name(slot) for slot in (0, 2, 3)])
        if leased:
            training.synchronizer.leave_round()
            training.synchronizer.close_round()
        lost = member_name(1)
        samples = training.synchronizer.samples_kept.get(lost, [])
        return {
            "table": training.table.weight.detach().clone(),
            "counts": counts(training, range(made)),
            "kept": torch.tensor(training.synchronizer.steps_kept(lost)),
            "samples": torch.tensor([place for each in samples for place in each.ranges]),
        }

    first, lost, third, fourth = run_world(4, body)
    due = -((first["counts"] + lost["counts"]) + (third["counts"] + fourth["counts"]) * 2) / 3
    for result in (first, third, fourth):
        torch.testing.assert_close(result["table"], due[:, None].expand(-1, 3))
        assert int(result["kept"]) == kept
        assert result["samples"].tolist() == ([[100, 101], [101, 102]] if leased else [])
