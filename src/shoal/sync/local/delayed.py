"""Steps with the mean gradient of `delay` steps ago: it travels while the next step is computed.

    before_step t    land the mean of step t-1 │ this worker's gradient of step t leaves │ step with the mean of t-delay
    the first steps  apply nothing: there is no mean yet
    a pass ends      all that is pending is applied, one optimizer step each: no gradient is lost

All replicas are equal after every step, and equal one process whose gradients come `delay` steps late. The optimizer
of each worker makes the same steps, so its momentum is that of one process, over late means. What is pending is the
same everywhere, too: it is in checkpoints, and newcomers get it.

Li et al., "Pipe-SGD: A Decentralized Pipelined SGD Framework for Distributed Deep Net Training", NeurIPS 2018. One
exchange is under way at a time, so a delay above 1 hides no more; it is there to measure what staleness costs. Do not
use it inside one host, where the sum is made when it lands, nor with large learning rates or momentum: staleness adds
to both.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.anchor import is_finite, trainable
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.round_totals import RoundInFlight
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.state import State, StateTensor
from shoal.sync.synchronizer import Part, StepAction

PENDING = "pending."
"""Before the place in the queue and the name of a parameter, in a state."""
WANTS, CLOSES, HAS = 4, 5, 6
"""Places of words: that somebody waits for a moment with nothing under way, that a pass has ended, and of every
parameter whether there was a gradient."""

Means = list[Tensor | None]
"""Of every parameter; None where nobody had a gradient."""


class DelayedAverageSynchronizer(LocalStepsSynchronizer):
    """Of one part with one optimizer. A round is an exchange of one step's gradients, weighted by samples."""

    streams = True
    compresses = "gradients"

    def __init__(self, exchange: GradientExchange, delay: int, sums: bool = False) -> None:
        """`sums`: losses are sums over samples, so gradients add up instead of being averaged."""
        super().__init__(exchange, AverageOuter(), 1)
        self.delay, self.sums = delay, sums
        self.pending: deque[Means] = deque()
        """Means that have landed and are not applied, oldest first."""
        self._wanted = False

    def open(self, part: Part, state: State | None = None) -> None:
        if len(part.optimizers) != 1:
            raise UsageError(
                f"stale({self.delay}) with allreduce delays the steps of one optimizer, and join() got "
                f"{len(part.optimizers)}; give it one, or write every(1)"
            )
        if part.sparse:
            raise UsageError(
                f"stale({self.delay}) with allreduce: {part.names[part.sparse[0]]!r} has sparse gradients, which are "
                "gathered in the step itself; write sparse=False, or every(1)"
            )
        # before `super().open`, which reserves room for the words
        self.MORE_WORDS = 2 + len(trainable(part)[0])
        super().open(part, state)

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        yield  # they are, after every step

    def before_step(self, optimizer: Optimizer) -> StepAction:
        self.land()
        gradients = [parameter.grad for parameter in self._parameters]
        tag, own = self._weigh([])
        # all count alike where gradients add up: the mean is multiplied by the sum of weights again
        own = 1.0 if self.sums else own
        # none at all: they were not finite, and were taken away
        self._launch_gradients(gradients, own if any(g is not None for g in gradients) else 0.0, tag)
        return self._choose_gradients()

    def skip_step(self) -> None:
        """The others make a step with a late mean, so this worker does, too; what it offers now counts for nothing."""
        self.land()
        tag, _ = self._weigh([])
        self._launch_gradients([None] * len(self._parameters), 0.0, tag)
        if self._choose_gradients() is StepAction.LOCAL:
            self.part.optimizers[0].step()
        self._count()

    def _choose_gradients(self) -> StepAction:
        """Put the mean of `delay` steps ago where the optimizer looks."""
        if len(self.pending) < self.delay:
            return StepAction.REMOTE
        self._put(self.pending.popleft())
        return StepAction.LOCAL

    def _put(self, means: Means) -> None:
        for parameter, mean in zip(self._parameters, means, strict=True):
            parameter.grad = mean

    def apply_pending(self) -> None:
        """Make the steps that are left. All workers have the same; the caller sees that nobody takes them for the
        script's."""
        while self.pending:
            self._put(self.pending.popleft())
            self.part.optimizers[0].step()
        self._put([None] * len(self._parameters))

    def leave_plan(self) -> None:
        held = [parameter.grad for parameter in self._parameters]
        self.apply_pending()
        self._put(held)

    def _launch_gradients(self, gradients: Sequence[Tensor | None], own: float, tag: int, closes: bool = False) -> None:
        began, seen = now(), self.exchange.observer
        sent, wire = seen.sent_bytes, seen.wire_bytes
        self.part.weights.round_launched()
        # whoever has none offers zeros: all workers must offer the same
        offered = [
            None if not p.requires_grad else torch.zeros_like(p, requires_grad=False) if g is None else g
            for p, g in zip(self._parameters, gradients, strict=True)
        ]
        has = [float(gradient is not None) for gradient in gradients]
        wants = float(self.part.wants_boundary())
        self._rounds.launch_round(offered, own, (1.0, tag, float(tag) ** 2, 1.0, wants, float(closes), *has))
        self._flight = RoundInFlight(own, own == 0.0 and not closes, sent, wire)
        self.totals.steps, self._made = self.totals.steps + self._made, 0
        self.totals.seconds += now() - began

    def land(self) -> bool:
        if self._flight is not None:
            self._land()
        return False

    def _take(self, means: Sequence[Tensor | None], flight: RoundInFlight) -> None:
        words = self._rounds.words
        # finite, too: a remote worker may spoil a sum
        counts = self._rounds.total > 0 and all(is_finite(m) for m in means if m is not None)
        if words[CLOSES] > 0:
            self._add_residuals(means)
            return
        self.totals.spoiled = self.totals.spoiled + 1 if flight.own > 0 and not counts else 0
        had = [counts and count > 0 for count in words[HAS:]]
        # copies: the next round writes over what this one has brought
        factor = self._rounds.total if self.sums else 1.0
        self.pending.append([m * factor if m is not None and h else None for m, h in zip(means, had, strict=True)])

    def _add_residuals(self, means: Sequence[Tensor | None]) -> None:
        """A codec with error feedback may send what it has held back, though nobody offers anything."""
        if not self.pending or not any(mean is not None and bool(mean.any()) for mean in means):
            return
        newest = self.pending[-1]
        for place, mean in enumerate(means):
            held = newest[place]
            if mean is not None and held is not None and is_finite(mean):
                held.add_(mean)

    def _agree_on_batches(self) -> None:
        closed, members = self._rounds.words[CLOSES], self._rounds.words[0]
        if self._batches_differ or 0 < closed < members:
            raise UsageError(
                f"allreduce, stale({self.delay}): workers made steps of different numbers of batches, as when a script "
                "or its GradScaler leaves out a batch on one of them; make a step of every batch, or write every(1)"
            )
        assert self.formed is not None
        self.part.weights.rescale(False)
        self.part.weights.round_landed(self.formed)

    def _landed(self) -> None:
        self._wanted = self._wanted or self._rounds.words[WANTS] > 0

    def _count(self) -> None:
        self._open = True
        self._made += 1
        if self._wanted:  # known from the same round on all workers
            self.land()
            self._close()

    def _close(self) -> None:
        """Nothing is under way, and all workers hold the same, what is pending included."""
        self._open = self._wanted = False

    def close_round(self) -> None:
        """A pass ends: one exchange more says that it does for everybody. A collective call."""
        self.land()
        tag = self.part.weights.tag().number
        view = self.part.session.view
        # a weight above 0, because residuals of codecs may come, and means are 0 if all weights are
        self._launch_gradients([None] * len(self._parameters), 1.0 / len(view), tag, closes=True)
        self.land()
        self._close()

    def state(self) -> State:
        queue = {
            f"{PENDING}{number}.{name}": StateTensor(mean, "equal")
            for number, means in enumerate(self.pending)
            for name, mean in zip(self._names, means, strict=True)
            if mean is not None
        }
        return {**super().state(), **queue}

    def load_state(self, state: State) -> None:
        super().load_state({name: one for name, one in state.items() if not name.startswith(PENDING)})
        kept = {name.removeprefix(PENDING): one.values for name, one in state.items() if name.startswith(PENDING)}
        length = max((int(name.partition(".")[0]) + 1 for name in kept), default=0)
        self.pending = deque([kept.get(f"{n}.{name}") for name in self._names] for n in range(min(length, self.delay)))
        for means in self.pending:
            for place, (mean, parameter) in enumerate(zip(means, self._parameters, strict=True)):
                means[place] = mean.clone() if mean is not None and mean.shape == parameter.shape else None
