"""One copy of the parameters for all workers of a host, written without locks (Hogwild!).

    before_step     the first of a round: wait until all have come here, attach to the copy
                    any: nothing; gradients were made from the copy as it was, others write meanwhile
    step            the script's optimizer writes into the copy
    after_step      count; after the last of a round all meet: samples count, running statistics are averaged
    settle          end an open round early: an evaluation or the end of an epoch follows

Niu, Recht, Ré & Wright, "Hogwild!: A lock-free approach to parallelizing stochastic gradient descent", NIPS 2011. From
the end of a round until all workers begin the next one the copy stands still: checkpoints, newcomers and evaluations
between two rounds see it. An element that two workers write in the same moment may lose one of the two updates.

Do not use it where updates are dense, many and large: workers then wait for each other's cache lines, and updates of
stale gradients add up to a larger step than the learning rate says. Nor where two runs must give the same bits.
"""

from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.groups.host_workers import CopyHost
from shoal.membership.session import slot_of
from shoal.membership.view import MembershipView
from shoal.sync.averaging import AveragingRound
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.anchor import trainable
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.outer import OuterOptimizer
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.shared.parameter_copy import SharedParameters
from shoal.sync.state import State
from shoal.sync.synchronizer import Part, StepAction, Synchronizer


class LockFreeSynchronizer(LocalStepsSynchronizer):
    """Of one part. `steps`: of each worker from one meeting to the next. A round of it moves no parameter."""

    def __init__(
        self, exchange: GradientExchange, host: CopyHost, steps: int, outer: OuterOptimizer | None = None
    ) -> None:
        super().__init__(exchange, outer or AverageOuter(), steps)
        self.host = host
        self._begun = False
        """Whether all workers have begun the round under way."""
        self._steps_before: list[int] = []
        """Of each slot, when the round began."""

    def open(self, part: Part, state: State | None = None) -> None:
        if not part.optimizers:
            raise UsageError("'shared' counts optimizer steps, and join() got no optimizer; give it the optimizer too")
        self._names, self._parameters = trainable(part)
        self._rounds = AveragingRound(self.exchange, part, [], self.spent, words=3)
        self._share(part)
        # not `super()`, which would lay out rounds of all parameters
        Synchronizer.open(self, part, state)

    def _share(self, part: Part) -> None:
        """Take the shared memory; every worker does so in the same order."""
        self.copy = SharedParameters(self.host, self._parameters, part.optimizers)

    def before_step(self, optimizer: Optimizer) -> StepAction:
        if not self._begun:
            self._begin_round()
        self.copy.check(optimizer)
        return StepAction.LOCAL

    def _begin_round(self) -> None:
        """Wait for all: those that take a checkpoint, or evaluate, read the copy until they come here."""
        if not self.copy.attached and not self.copy.is_filled:
            self._fill()
        self._steps_before = self.copy.steps()  # nobody steps before this worker has come
        self._await_all()
        # not in `open`: a state that is loaded until now would overwrite what others have trained
        if not self.copy.attached:
            self.copy.attach()
        self._begun = True

    def _fill(self) -> None:
        self.copy.fill()

    def _await_all(self) -> MembershipView:
        """Return when all members have come here: those of the view that is returned."""
        # nothing is averaged: only that all have come counts
        self._rounds.mean([None] * self._rounds.size, 0.0, (0.0,) * len(self._rounds.words))
        return self._rounds.view

    def _count(self) -> None:
        if not self._begun:  # this worker has no sample in the first step of a round
            self._begin_round()
        self.copy.count_step()
        super()._count()

    def close_round(self) -> None:
        if not self._begun:
            self._begin_round()
        began = now()
        tag = self.part.weights.tag().number
        self._rounds.mean([], self.part.weights.round_share(), (1.0, tag, float(tag) ** 2))
        self.formed = self._rounds.view
        members, numbers, squares = self._rounds.words
        # all numbers are equal if the mean of the squares is the square of the mean
        self.part.weights.rescale(members * squares != numbers * numbers)
        self.totals.rounds, self.totals.steps = self.totals.rounds + 1, self.totals.steps + self._made
        self._agree()
        self._made, self._open, self._begun = 0, False, False
        self.totals.seconds += now() - began

    def _agree(self) -> None:
        """All have met, and nobody writes: with one copy there is nothing to agree on."""

    def steps_kept(self, member: str) -> int:
        slot = slot_of(member)
        return self.copy.steps()[slot] - self._steps_before[slot]
