"""Every synchronizer passes the conformance case; so do toys that use the hooks round the optimizer's step."""

import torch
from by_links import linked_by_files

from shoal.plan.plan import Plan
from shoal.sync.averaging import AveragingRound
from shoal.sync.independent import IndependentSynchronizer
from shoal.sync.lockstep.auto_order import AutoOrderSynchronizer
from shoal.sync.lockstep.lockstep import LockstepSynchronizer
from shoal.sync.lockstep.needed import NeededOrderSynchronizer
from shoal.sync.state import StateTensor
from shoal.sync.synchronizer import StepAction, Synchronizer
from shoal.testing import SynchronizerCase
from shoal.train.build import EngineChooser, build_exchange


def exchange(group, directory, plan=""):
    return build_exchange(Plan.parse(plan) if plan else Plan(), group, EngineChooser(group, directory))


class OverLinks(SynchronizerCase):
    """Every synchronizer of a worker has links of its own."""

    made = 0

    def exchange(self, group, directory):
        self.made += 1
        folder = directory / f"links-{self.made}"
        folder.mkdir(exist_ok=True)
        return exchange(linked_by_files(group, folder), folder)


class TestLockstep(SynchronizerCase):
    def make(self, group, directory):
        return LockstepSynchronizer(exchange(group, directory))


class TestLockstepWithResiduals(SynchronizerCase):
    """What waits to be sent is a sum; the factors of lowrank are equal."""

    sizes = (2, 2)
    synchronous = False

    def make(self, group, directory):
        return LockstepSynchronizer(exchange(group, directory, "lowrank(1)"))


class TestNeededOrder(OverLinks):
    """Whoever looks at a gradient waits for it, so to a script it is as any other."""

    def make(self, group, directory):
        return NeededOrderSynchronizer(self.exchange(group, directory))


class TestAutoOrder(OverLinks):
    """In turns as either."""

    def make(self, group, directory):
        return AutoOrderSynchronizer(self.exchange(group, directory))


class TestIndependent(SynchronizerCase):
    synchronous = agrees = False

    def make(self, group, directory):
        return IndependentSynchronizer()


class RemoteSteps(Synchronizer):
    """A toy server: it takes the gradients away, and makes the step of momentum SGD for all."""

    def __init__(self, exchange):
        super().__init__()
        self.exchange = exchange

    def open(self, part, state=None):
        self.rounds = AveragingRound(self.exchange, part, part.parameters, self.spent)
        self.momenta = [torch.zeros_like(p) for p in part.parameters]
        super().open(part, state)

    def before_step(self, optimizer):
        self._update(self.rounds.mean([_or_zeros(p.grad, p) for p in self.part.parameters]))
        return StepAction.REMOTE

    def _update(self, means):
        self.pending = [m.mul_(0.5).add_(mean) for m, mean in zip(self.momenta, means, strict=True)]

    def after_step(self, optimizer):
        with torch.no_grad():
            for parameter, momentum in zip(self.part.parameters, self.pending, strict=True):
                parameter.add_(momentum, alpha=-0.02)

    def skip_step(self):
        self._update(self.rounds.mean([torch.zeros_like(p) for p in self.part.parameters]))
        self.after_step(None)

    def state(self):
        return {f"momentum.{n}": StateTensor(m, "equal") for n, m in zip(self.part.names, self.momenta, strict=True)}

    def load_state(self, state):
        for name, own in self.state().items():
            own.values.copy_(state[name].values)


def _or_zeros(gradient, parameter):
    return gradient if gradient is not None else torch.zeros_like(parameter)


class TestRemoteSteps(SynchronizerCase):
    def make(self, group, directory):
        return RemoteSteps(exchange(group, directory))


class LocalSteps(Synchronizer):
    """A toy of local SGD: parameters are averaged after every second step, and when something else follows."""

    def __init__(self, exchange):
        super().__init__()
        self.exchange = exchange
        self.drift = torch.zeros(1)

    def open(self, part, state=None):
        self.rounds, self.steps = AveragingRound(self.exchange, part, part.parameters, self.spent), 0
        super().open(part, state)

    @property
    def replicas_equal(self):
        return self.steps % 2 == 0

    def after_step(self, optimizer):
        self.steps += 1
        if self.replicas_equal:
            self._average()

    def skip_step(self):
        self.after_step(None)

    def settle(self):
        if not self.replicas_equal:
            self.steps += 1
            self._average()

    def _average(self):
        with torch.no_grad():
            for parameter, mean in zip(self.part.parameters, self.rounds.mean(self.part.parameters), strict=True):
                self.drift += (parameter - mean).norm()
                parameter.copy_(mean)

    def state(self):
        return {"drift": StateTensor(self.drift, "mean")}

    def load_state(self, state):
        self.drift.copy_(state["drift"].values)


class TestLocalSteps(SynchronizerCase):
    synchronous = False

    def make(self, group, directory):
        return LocalSteps(exchange(group, directory))
