"""Local steps: every worker trains by itself; after `steps` steps the replicas agree on parameters.

    before_step     the first of a round: remember the parameters, which are the same on all workers (the anchor)
    after_step      count; after the last: mean change of all ──> outer optimizer ──> parameters, the next anchor
    settle          end an open round early: an evaluation or the end of an epoch follows

The change since the anchor travels in one averaging round, through the plan's exchange and codecs, weighted by the
samples of each worker. No gradient is exchanged, and no hook is on any parameter. A worker whose change is not finite
takes part with weight 0 and goes on from what the others say. Optimizers keep their own state from round to round, or
begin each round without one (`reset`), or take the mean of all (`average_state`).

Under an elastic outer optimizer the anchor is a centre, and replicas stay different after a round. `settle` makes them
the centre, which is what evaluations see; checkpoints and newcomers get it by `agreed_parameters`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.membership.view import MOST_MEMBERS, MembershipView
from shoal.sync.averaging import AveragingRound
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.anchor import MOMENTUM, RoundAnchor, copy_values, is_finite, trainable
from shoal.sync.local.optimizer_states import OptimizerStates
from shoal.sync.local.outer import OuterOptimizer
from shoal.sync.local.round_totals import RoundInFlight, RoundTotals
from shoal.sync.state import State, StateTensor
from shoal.sync.synchronizer import Part, StepAction, Synchronizer
from shoal.sync.trained import TrainedSamples


class LocalStepsSynchronizer(Synchronizer):
    """Of one part. `steps`: from one round to the next, counted on the last optimizer of the part.

    `leased`: samples are leased, so workers make different numbers of steps; who leases them closes the rounds.
    `ends_with_fastest`: then a round ends with the first worker that has made `steps` steps.
    """

    compresses: Literal["gradients", "changes", "pushed gradients"] = "changes"
    leased: bool = False
    ends_with_fastest: bool = False
    streams: ClassVar[bool] = False
    """Whether rounds land while later steps are made, or cover a part of the parameters: see `streaming.py`."""
    is_unsettled: bool = False
    """Whether workers came to a round that has landed with different numbers of batches, and have not said yet which:
    until then nothing is committed."""
    MORE_WORDS: int = 0

    def __init__(
        self,
        exchange: GradientExchange,
        outer: OuterOptimizer,
        steps: int,
        reset: bool = False,
        average_state: bool = False,
    ) -> None:
        super().__init__()
        self.exchange, self.outer, self.steps, self.reset = exchange, outer, steps, reset
        self.average_state = average_state
        self.totals = RoundTotals()
        self.formed: MembershipView | None = None
        """The view whose members made the last round."""
        self._made, self._open = 0, False
        """Steps since the last round, and whether any optimizer has made one."""
        self._apart = False
        """Whether replicas were left different by an elastic round."""
        self._anchor = RoundAnchor()
        self._states: OptimizerStates | None = None
        self._flight: RoundInFlight | None = None

    @property
    def replicas_equal(self) -> bool:  # type: ignore[override]
        """Only between the end of a round and the next step; after an elastic one, only once it is settled."""
        return not self._open and not self._apart

    @property
    def is_round_open(self) -> bool:  # type: ignore[override]
        return self._open

    @property
    def steps_made(self) -> int:
        """Since the last round."""
        return self._made

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        if self.replicas_equal or not self._anchor.is_held:
            yield
            return
        own = [parameter.detach().clone() for parameter in self._parameters]
        self._anchor.write_back()
        try:
            yield
        finally:
            if not self.replicas_equal:  # else they were settled meanwhile, and stay what all agreed on
                copy_values(own, self._parameters)

    def open(self, part: Part, state: State | None = None) -> None:
        if not part.optimizers:
            raise UsageError("local(…) counts optimizer steps, and join() got no optimizer; give it the optimizer too")
        self._names, self._parameters = trainable(part)
        like, names, fragments = list(self._parameters), list(self._names), self._cut()
        if self.average_state:
            self._states = OptimizerStates(part.optimizers, self._parameters)
            more = self._states.like
            fragments.append(list(range(len(like), len(like) + len(more))))
            # without names, so that no codec takes them
            like, names = [*like, *more], [*names, *("" for _ in more)]
        words = 4 + self.MORE_WORDS
        self._rounds = AveragingRound(self.exchange, part, like, self.spent, names, words=words, fragments=fragments)
        self._anchor = RoundAnchor(self._names, self._parameters, self.outer.remembers)
        super().open(part, state)

    def _cut(self) -> list[list[int]]:
        """Places of the parameters that travel together."""
        return [list(range(len(self._parameters)))]

    def before_step(self, optimizer: Optimizer) -> StepAction:
        if not self._anchor.is_held:
            self._anchor.remember()
        return StepAction.LOCAL

    def after_step(self, optimizer: Optimizer) -> None:
        self._open = True
        if optimizer is self.part.optimizers[-1]:
            self._count()

    def skip_step(self) -> None:
        self._count()

    def _count(self) -> None:
        self._open = True
        self._made += 1
        if self._made >= self.steps and not self.leased:
            self.close_round()

    def settle(self) -> None:
        if self._open:
            self.close_round()
        if self._apart:
            self._anchor.write_back()
            self._apart = self._anchor.is_held = False

    def close_round(self) -> None:
        """Agree with all others, who do the same: a collective call."""
        self._launch(range(len(self._parameters)))
        self._land()

    def _launch(self, places: Sequence[int]) -> None:
        """Let the change of these parameters leave."""
        began, seen = now(), self.exchange.observer
        sent, wire = seen.sent_bytes, seen.wire_bytes
        if not self._anchor.is_held:  # no step was made here, but others have made some
            self._anchor.remember()
        # before anything is sent, because one NaN would spoil the sum of all
        bad = not self._is_finite()
        tag, own = self._weigh(places)
        own = 0.0 if bad else own
        changes = self._anchor.changes(places, bad)
        # in turn: counts workers; two tell whether all had as many batches; whether anybody has made a step
        words = (1.0, tag, float(tag) ** 2, float(self._stepped), *self._more_words(changes, own))
        states = self._states.offer() if self._states is not None else []
        self._rounds.launch_round([*changes, *states], own, words)
        self._flight = RoundInFlight(own, bad, sent, wire)
        self.totals.steps, self._made = self.totals.steps + self._made, 0
        self.totals.seconds += now() - began

    @property
    def _stepped(self) -> bool:
        """Whether steps were made here since the last round left."""
        return self._open

    def _weigh(self, places: Sequence[int]) -> tuple[int, float]:
        """This worker's number of batches, and how much it counts in a round of these parameters."""
        return self.part.weights.tag().number, self.part.weights.round_share()

    def _more_words(self, changes: Sequence[Tensor | None], own: float) -> Sequence[float]:
        """Numbers of a subclass that are added up with the round: `MORE_WORDS` of them. `own`: this worker's weight."""
        return ()

    def _land(self) -> None:
        """Wait for what left, and make the outer step of it."""
        began, seen, flight = now(), self.exchange.observer, self._flight
        assert flight is not None
        means = self._rounds.land_round()
        self.formed, self._flight = self._rounds.view, None
        self._take(means, flight)
        self._agree_on_batches()
        totals = self.totals
        totals.rounds, totals.dropped = totals.rounds + 1, totals.dropped + flight.bad
        totals.sent += seen.sent_bytes - flight.sent
        totals.wire += seen.wire_bytes - flight.wire
        self._landed()
        totals.seconds += now() - began

    def _agree_on_batches(self) -> None:
        """All numbers of batches are equal if the mean of their squares is the square of their mean."""
        self.part.weights.rescale(self._batches_differ)

    @property
    def _batches_differ(self) -> bool:
        members, numbers, squares, *_ = self._rounds.words
        return members * squares != numbers * numbers

    def _landed(self) -> None:
        """Everything is agreed on."""
        self._open = False
        # an elastic centre stays for the next round; any other anchor is the parameters themselves
        self._apart = self._anchor.is_held = self.outer.elastic
        self._anchor.note_trained()

    def land(self) -> bool:
        """Leave no round under way, because something else is exchanged; whether that has made all replicas equal. A
        collective call."""
        return False

    def leave_round(self) -> None:
        """Make no more steps in this round: what follows is `close_round`, once all others have come so far."""

    def steps_kept(self, member: str) -> int:
        """Steps of this round that a lost member has made for all: under local steps none."""
        return 0

    @property
    def unused_batches(self) -> Collection[int]:
        """Which of the leased batches that this worker was given in this round its steps have come to nothing with."""
        return ()

    @property
    def samples_kept(self) -> Mapping[str, Sequence[TrainedSamples]]:
        """Lost member -> the leased samples of those steps."""
        return {}

    def datagram_counts(self) -> Mapping[str, int]:
        """What became of datagrams so far: a field of `DatagramsCounted` -> number; nothing where none travel."""
        return {}

    def _is_finite(self) -> bool:
        return all(is_finite(p) for p in self._parameters)

    def _take(self, means: Sequence[Tensor | None], flight: RoundInFlight) -> None:
        """Make the outer step; nobody's change may count."""
        said = self._rounds.words[0]
        workers = int(min(said, MOST_MEMBERS)) if said >= 1 else 0  # a remote worker's word is in the sum
        # finite, too: a remote worker may spoil a sum, and then the round changes nothing
        counts = self._rounds.total > 0 and all(is_finite(mean) for mean in means if mean is not None)
        self.totals.spoiled = self.totals.spoiled + 1 if flight.own > 0 and not counts else 0
        with torch.no_grad():
            for place, mean in enumerate(means[: len(self._parameters)]):
                if mean is not None:
                    anchor, momentum = self._anchor.values[place], self._anchor.momentum(place)
                    counting = workers if counts and self._has_moved(place) else 0
                    after = self.outer.step(anchor, mean, momentum, workers) if counting else anchor
                    self._go_on(place, after, flight, counting)
            if self._states is not None and counts:
                self._states.take(means[len(self._parameters) :])
        if self.reset:
            for optimizer in self.part.optimizers:
                optimizer.state.clear()

    def _has_moved(self, place: int) -> bool:
        """Whether anybody has made a step since the last round of this parameter."""
        return self._rounds.words[3] > 0

    def _go_on(self, place: int, after: Tensor, flight: RoundInFlight, workers: int) -> None:
        """Parameter `place` goes on from `after`, the next anchor; `workers`: 0 if nobody's change counts."""
        parameter, anchor = self._parameters[place], self._anchor.values[place]
        if not self.outer.elastic or flight.bad:
            parameter.copy_(after)
        elif workers:
            # by its weight, as in the mean: so the corrections of all add up to what the centre moves by
            parameter.lerp_(anchor, self.outer.pull(workers) * workers * flight.own / self._rounds.total)
        if self.outer.elastic:
            anchor.copy_(after)

    def state(self) -> State:
        shared, own = self.exchange.shared(), self.exchange.state()
        found = {name: StateTensor(tensor, "equal") for name, tensor in shared.items()}
        found |= {name: StateTensor(tensor, "sum") for name, tensor in own.items() if name not in shared}
        return found | self._anchor.state()

    def load_state(self, state: State) -> None:
        self.exchange.load({name: one.values for name, one in state.items() if not name.startswith(MOMENTUM)})
        self._anchor.load_state(state)
