"""Local steps: every worker trains by itself; after `steps` steps the replicas agree on parameters.

    before_step     the first of a round: remember the parameters, which are the same on all workers (the anchor)
    after_step      count; after the last: mean change of all ──> outer optimizer ──> parameters, the next anchor
    settle          end an open round early: an evaluation or the end of an epoch follows

The change since the anchor travels in one averaging round, through the plan's exchange and codecs, weighted by the
samples of each worker. No gradient is exchanged, and no hook is on any parameter. A worker whose change is not finite
takes part with weight 0 and goes on from what the others say. Optimizers keep their own state from round to round, or
begin each round without one (`reset`).

Under an elastic outer optimizer the anchor is a centre, and replicas stay different after a round. `settle` makes them
the centre, which is what evaluations see; checkpoints and newcomers get it by `agreed_parameters`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.membership.view import MembershipView
from shoal.sync.averaging import AveragingRound
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.outer import OuterOptimizer
from shoal.sync.state import State, StateTensor
from shoal.sync.synchronizer import Part, StepAction, Synchronizer

MOMENTUM = "outer."
"""Before the name of a parameter: the outer optimizer's momentum, in a state."""


@dataclass
class RoundTotals:
    """Of all rounds so far, on one worker."""

    rounds: int = 0
    steps: int = 0
    """Steps of the optimizer that counts them."""
    seconds: float = 0.0
    """From the end of a worker's own steps until it has the new parameters: packing, waiting, transfer."""
    sent: int = 0
    wire: int = 0
    dropped: int = 0
    """Rounds in which this worker's change was not finite, and did not count."""


class LocalStepsSynchronizer(Synchronizer):
    """Of one part. `steps`: from one round to the next, counted on the last optimizer of the part."""

    def __init__(self, exchange: GradientExchange, outer: OuterOptimizer, steps: int, reset: bool = False) -> None:
        super().__init__()
        self.exchange, self.outer, self.steps, self.reset = exchange, outer, steps, reset
        self.totals = RoundTotals()
        self.formed: MembershipView | None = None
        """The view whose members made the last round."""
        self._made, self._open = 0, False
        """Steps since the last round, and whether any optimizer has made one."""
        self._apart = False
        """Whether replicas were left different by an elastic round."""
        self._anchors: list[Tensor] = []
        self._anchored = False
        self._momenta: list[Tensor] = []
        self._travelled: set[int] = set()
        """Places of parameters that were trained when the round began."""

    @property
    def replicas_equal(self) -> bool:  # type: ignore[override]
        """Only between the end of a round and the next step; after an elastic one, only once it is settled."""
        return not self._open and not self._apart

    @property
    def is_round_open(self) -> bool:  # type: ignore[override]
        return self._open

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        if self.replicas_equal or not self._anchored:
            yield
            return
        own = [parameter.detach().clone() for parameter in self._parameters]
        _copy(self._anchors, self._parameters)
        try:
            yield
        finally:
            _copy(own, self._parameters)

    def open(self, part: Part, state: State | None = None) -> None:
        if not part.optimizers:
            raise UsageError("local(…) counts optimizer steps, and join() got no optimizer; give it the optimizer too")
        self._names, self._parameters = trainable(part)
        self._rounds = AveragingRound(self.exchange, part, self._parameters, self.spent, self._names, words=4)
        if self.outer.remembers:
            self._momenta = [torch.zeros_like(p, requires_grad=False) for p in self._parameters]
        super().open(part, state)

    def before_step(self, optimizer: Optimizer) -> StepAction:
        if not self._anchored:
            self._remember()
        return StepAction.LOCAL

    def _remember(self) -> None:
        if not self._anchors:
            self._anchors = [torch.empty_like(p, requires_grad=False) for p in self._parameters]
        _copy(self._parameters, self._anchors)
        self._anchored, self._travelled = True, self._trained()

    def _trained(self) -> set[int]:
        return {place for place, parameter in enumerate(self._parameters) if parameter.requires_grad}

    def after_step(self, optimizer: Optimizer) -> None:
        self._open = True
        if optimizer is self.part.optimizers[-1]:
            self._count()

    def skip_step(self) -> None:
        self._count()

    def _count(self) -> None:
        self._open = True
        self._made += 1
        if self._made >= self.steps:
            self.close_round()

    def settle(self) -> None:
        if self._open:
            self.close_round()
        if self._apart:
            _copy(self._anchors, self._parameters)
            self._apart = self._anchored = False

    def close_round(self) -> None:
        """Agree with all others, who do the same: a collective call."""
        began, seen = now(), self.exchange.observer
        sent, wire = seen.sent_bytes, seen.wire_bytes
        if not self._anchored:  # no step was made here, but others have made some
            self._remember()
        bad = not self._is_finite()
        tag, own = self.part.weights.tag().number, 0.0 if bad else self.part.weights.round_share()
        means = self._rounds.mean(self._changes(bad), own, (1.0, tag, float(tag) ** 2, float(self._open)))
        self.formed = self._rounds.view
        self._take(means, own, bad)
        members, numbers, squares, _ = self._rounds.words
        # all numbers are equal if the mean of the squares is the square of the mean
        self.part.weights.rescale(members * squares != numbers * numbers)
        totals = self.totals
        totals.rounds, totals.steps = totals.rounds + 1, totals.steps + self._made
        totals.dropped += bad
        totals.sent, totals.wire = totals.sent + seen.sent_bytes - sent, totals.wire + seen.wire_bytes - wire
        self._made, self._open = 0, False
        self._apart = self._anchored = self.outer.elastic
        self._travelled = self._trained()
        totals.seconds += now() - began

    def steps_kept(self, member: str) -> int:
        """Steps of this round that a lost member has made for all: under local steps none."""
        return 0

    def _is_finite(self) -> bool:
        return all(_is_finite(p) for p in self._parameters)

    def _changes(self, bad: bool) -> list[Tensor | None]:
        """What this worker's steps came to; None for what is frozen, on all workers alike."""
        travels = self._travelled | self._trained()
        pairs = zip(self._parameters, self._anchors, strict=True)
        # a change that does not count only says that there is one
        return [(a if bad else p.detach() - a) if n in travels else None for n, (p, a) in enumerate(pairs)]

    def _take(self, means: Sequence[Tensor | None], own: float, bad: bool) -> None:
        """Make the outer step; nobody's change may count. `own`: the weight of this worker's, which may be `bad`."""
        total, workers = self._rounds.total, int(self._rounds.words[0])
        counts = total > 0 and self._rounds.words[3] > 0
        counts = counts and all(_is_finite(mean) for mean in means if mean is not None)
        with torch.no_grad():
            for place, mean in enumerate(means):
                if mean is None:
                    continue
                parameter, anchor = self._parameters[place], self._anchors[place]
                momentum = self._momenta[place] if self._momenta else None
                after = self.outer.step(anchor, mean, momentum, workers) if counts else anchor
                if not self.outer.elastic or bad:
                    parameter.copy_(after)
                elif counts:
                    # by its weight, as in the mean: so the corrections of all add up to what the centre moves by
                    parameter.lerp_(anchor, self.outer.pull(workers) * workers * own / total)
                if self.outer.elastic:
                    anchor.copy_(after)
        if self.reset:
            for optimizer in self.part.optimizers:
                optimizer.state.clear()

    def state(self) -> State:
        shared, own = self.exchange.shared(), self.exchange.state()
        found = {name: StateTensor(tensor, "equal") for name, tensor in shared.items()}
        found |= {name: StateTensor(tensor, "sum") for name, tensor in own.items() if name not in shared}
        momenta = zip(self._names, self._momenta, strict=False)  # there may be none
        return found | {f"{MOMENTUM}{name}": StateTensor(tensor, "equal") for name, tensor in momenta}

    def load_state(self, state: State) -> None:
        self.exchange.load({name: one.values for name, one in state.items() if not name.startswith(MOMENTUM)})
        for name, momentum in zip(self._names, self._momenta, strict=False):
            saved = state.get(f"{MOMENTUM}{name}")
            if saved is not None and saved.values.shape == momentum.shape:
                momentum.copy_(saved.values)


def trainable(part: Part) -> tuple[list[str], list[Tensor]]:
    """Names and tensors of what an optimizer may change: floating-point parameters."""
    found = [(n, p) for n, p in zip(part.names, part.parameters, strict=True) if p.is_floating_point()]
    return [name for name, _ in found], [parameter for _, parameter in found]


def _copy(values: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    for value, target in zip(values, into, strict=True):
        target.detach().copy_(value.detach())


def _is_finite(tensor: Tensor) -> bool:
    """One pass, and a second only if the sum overflows."""
    found = tensor.detach()
    total = found.sum(dtype=torch.float32) if found.element_size() == 2 else found.sum()
    return bool(total.isfinite()) or bool(found.isfinite().all())
