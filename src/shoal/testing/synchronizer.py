"""The conformance case of synchronizers; `sync/synchronizer.py` has the contract."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.core.events import RunEvent
from shoal.groups.base import WorkerGroup
from shoal.membership.view import MembershipView
from shoal.sync.backward import BackwardHooks
from shoal.sync.lockstep.lockstep import LockstepSynchronizer
from shoal.sync.state import State, StateTensor, redistribute
from shoal.sync.synchronizer import EqualWeights, Part, StepAction, Synchronizer
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.progress import StepProgress
from shoal.train.step_hooks import StepHooks
from shoal.train.step_transaction import StepTransaction

# Rows that two and three workers share evenly.
STEPS, ROWS = 6, 12


class BranchModel(nn.Module):
    """A model of which a pass may use a part: `used` names the branches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Linear(4, 8)
        self.left, self.right, self.idle = nn.Linear(8, 2), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor, used: Sequence[str] = ("left", "right")) -> Tensor:
        hidden = torch.tanh(self.trunk(x))
        return torch.stack([getattr(self, name)(hidden).sum(1) for name in used]).sum(0)


class SynchronizerDriver:
    """One worker's model and optimizer under a synchronizer, driven by the hooks of `join` and nothing else."""

    def __init__(self, synchronizer: Synchronizer, group: WorkerGroup, disturbed: bool = False) -> None:
        self.synchronizer, self.group, self.disturbed = synchronizer, group, disturbed
        self.model = BranchModel()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.5)
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        self.calls: list[str] = []
        self.taken = 0
        """Steps that were taken away."""
        self.moved = False
        """Whether one of those has changed a parameter before `after_step`."""
        self._before: list[Tensor] = []
        self.transaction = StepTransaction(group.session)
        self.backward: BackwardHooks | None = None
        synchronizer.open(
            Part(
                names,
                parameters,
                group.session,
                self.transaction,
                EqualWeights(group.session),
                optimizers=[self.optimizer],
                is_backward_running=lambda: self.backward is not None and self.backward.running,
            )
        )
        self._observe()
        if synchronizer.listens_to_backward:
            self.backward = BackwardHooks(parameters, synchronizer)
        StepHooks([self.optimizer], synchronizer, self, StepProgress(self, group), first=True)

    def _observe(self) -> None:
        """Note the calls of all hooks, and change the view between any two of them if asked to."""
        for name in ("before_forward", "backward_began", "gradient_ready", "backward_ended", "before_step",
                     "after_step", "skip_step", "settle"):  # fmt: skip
            setattr(self.synchronizer, name, self._noted(name, getattr(self.synchronizer, name)))

    def _noted(self, name: str, hook):  # type: ignore[no-untyped-def]
        def act(*given: object) -> object:
            self.calls.append(name)
            if self.disturbed and name != "gradient_ready":
                view = self.group.session.view
                self.synchronizer.on_view_change(view, MembershipView(view.generation, view.members))
            if name == "after_step" and self.taken and self._before:
                now_ = zip(self._before, self.model.parameters(), strict=True)
                self.moved = self.moved or not all(torch.equal(a, b.detach()) for a, b in now_)
            found = hook(*given)
            if found is StepAction.REMOTE:
                self.taken += 1
                self._before = [p.detach().clone() for p in self.model.parameters()]
            return found

        return act

    def before_step(self, optimizer: Optimizer, closure: bool) -> None:
        """A listener of the steps."""

    def after_step(self, optimizer: Optimizer, closure: bool) -> None:
        """The other half."""

    def emit(self, event: RunEvent) -> None:
        """A sink of events."""

    def step(self, rows: Tensor, used: Sequence[str] = ("left", "right")) -> float:
        self.synchronizer.before_forward()
        loss = (self.model(rows, used) - 1).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def skip(self) -> None:
        """The others make a step for which this worker has no sample."""
        if isinstance(self.synchronizer, LockstepSynchronizer):
            self.synchronizer.begin_empty_handed()
            self.transaction.commit()
        else:
            self.synchronizer.skip_step()

    def parameters(self) -> Result:
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}


class SynchronizerCase(ABC):
    """Subclass, implement `make`; pytest runs the rest, on real processes.

    `synchronous`: parameters are those of one process with the whole batch. `agrees`: all workers end with the same.
    `repeatable`: the same training gives the same bits again.
    """

    sizes = (2, 3)
    synchronous = True
    agrees = True
    repeatable = True

    @abstractmethod
    def make(self, group: WorkerGroup, directory: Path) -> Synchronizer:
        """The synchronizer under test, in one worker."""

    def drive(self, world: WorkerWorld, disturbed: bool = False) -> SynchronizerDriver:
        return SynchronizerDriver(self.make(world.group, world.dir), world.group, disturbed)

    def _train(self, world: WorkerWorld, disturbed: bool) -> tuple[SynchronizerDriver, list[float]]:
        driver, each = self.drive(world, disturbed), ROWS // world.group.size
        rows = _rows()[world.group.rank * each : (world.group.rank + 1) * each]
        losses = [driver.step(rows) for _ in range(STEPS)]
        driver.synchronizer.settle()
        return driver, losses

    def test_equals_one_process_with_the_whole_batch(self) -> None:
        """If it is synchronous. Of any: a finite, lower loss, and the same replicas if it agrees."""

        def body(world: WorkerWorld) -> Result:
            driver, losses = self._train(world, disturbed=False)
            return {"losses": torch.tensor(losses), **driver.parameters()}

        alone = BranchModel()
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.02, momentum=0.5)
        for _ in range(STEPS):
            (alone(_rows()) - 1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        for size in self.sizes:
            results = run_world(size, body)
            for result in results:
                assert result["losses"].isfinite().all()
                assert result["losses"][-1] < result["losses"][0]
                for name, parameter in alone.named_parameters():
                    if self.synchronous:
                        torch.testing.assert_close(result[name], parameter.detach(), atol=1e-6, rtol=0)
                    if self.agrees:
                        assert torch.equal(result[name], results[0][name]), name

    def test_hooks_come_in_order_and_view_changes_between_any_two_change_nothing(self) -> None:
        """The members stay: what is lost with one is the business of the transaction and of `on_view_change`."""

        def body(world: WorkerWorld) -> Result:
            plain, _ = self._train(world, disturbed=False)
            disturbed, _ = self._train(world, disturbed=True)
            # a synchronizer may settle by itself, before the next pass begins
            order = [name for name in disturbed.calls if name not in ("gradient_ready", "settle")]
            backward = ["backward_began", "backward_ended"] if disturbed.backward is not None else []
            assert order == ["before_forward", *backward, "before_step", "after_step"] * STEPS
            assert disturbed.calls[-1] == "settle"
            for name, value in disturbed.parameters().items():
                assert not self.repeatable or torch.equal(value, plain.parameters()[name]), name
            return {}

        run_world(self.sizes[0], body)

    def test_a_step_that_is_taken_away_is_not_made_here(self) -> None:
        def body(world: WorkerWorld) -> Result:
            driver, _ = self._train(world, disturbed=False)
            assert not driver.moved, "before_step said REMOTE, and the optimizer changed a parameter"
            return {}

        run_world(self.sizes[0], body)

    def test_settle_leaves_nothing_under_way(self) -> None:
        """A second call changes nothing, and afterwards no worker waits for another."""

        def body(world: WorkerWorld) -> Result:
            driver, _ = self._train(world, disturbed=False)
            assert driver.synchronizer.replicas_equal or not self.agrees
            before = driver.parameters()
            if world.group.rank == 0:
                driver.synchronizer.settle()
            assert all(torch.equal(before[name], value) for name, value in driver.parameters().items())
            return {}

        run_world(self.sizes[0], body)

    def test_its_state_goes_on_in_another_and_is_dealt_again(self) -> None:
        def body(world: WorkerWorld) -> Result:
            driver, _ = self._train(world, disturbed=False)
            other = self.drive(world)
            state = _copy(driver.synchronizer.state())
            other.synchronizer.load_state(state)
            for name, one in other.synchronizer.state().items():
                assert torch.equal(one.values, state[name].values), name
            return {f"{one.merge} {name}": one.values.double() for name, one in state.items()}

        results = run_world(self.sizes[0], body)
        states = [{n: StateTensor(t, n.partition(" ")[0]) for n, t in result.items()} for result in results]  # type: ignore[arg-type]
        for workers in (1, 2, 3):
            for name, share in redistribute(states, workers).items():
                parts = torch.stack([state[name].values for state in states])
                if share.merge == "equal":
                    assert torch.equal(parts[0], parts[-1]), f"{name} differs between workers"
                expected = {"equal": parts[0], "mean": parts.mean(0), "sum": parts.sum(0) / workers}[share.merge]
                torch.testing.assert_close(share.values, expected)

    def test_branches_used_by_some_do_not_hang(self) -> None:
        def body(world: WorkerWorld) -> Result:
            driver = self.drive(world)
            for step in range(STEPS):
                used = ["left"] if (world.group.rank + step) % 2 else ["right"]
                driver.model(torch.ones(2, 4), used).sum().backward()
                assert driver.model.idle.weight.grad is None, "a gradient nobody had must stay None"
                assert driver.model.left.weight.grad is not None or not driver.synchronizer.lockstep
            return {}

        run_world(self.sizes[0], body)

    def test_a_worker_without_samples_takes_part(self) -> None:
        def body(world: WorkerWorld) -> Result:
            driver = self.drive(world)
            if world.group.rank == 0:
                driver.step(_rows())
            else:
                driver.skip()
                assert driver.model.trunk.weight.grad is None
            return driver.parameters()

        results = run_world(self.sizes[-1], body)
        assert not torch.equal(results[0]["trunk.weight"], BranchModel().trunk.weight.detach())


def _rows() -> Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))


def _copy(state: State) -> dict[str, StateTensor]:
    return {name: StateTensor(one.values.clone(), one.merge) for name, one in state.items()}
