"""Butterfly mixing: one exchange of parameters with one other worker after every step, instead of one with all.

    after_step    t = 0, 1, …  the partner's place differs in bit t mod log2 p;  parameters = the mean of the pair's
    meeting       after `steps` steps, and when a pass ends: the mean of all, so replicas are equal

Zhao & Canny, "Butterfly mixing: Accelerating incremental-update algorithms on clusters", SDM 2013. After log2 p steps
every replica holds a p-th of everybody's changes, so without gradients all have the exact mean; with them they lag by
log2 p steps. A pair keeps the sum of its parameters, so the mean over all workers is never changed by mixing.

Between meetings replicas differ, and samples, checkpoints and newcomers wait for one. A worker that is lost takes along
its part of what is not mixed yet; its samples since the meeting are dealt again, though partners keep what they have
of them. Every worker must make a step of every batch, because partners wait for each other in each.

Do not use it inside one host, where a sum of all costs no more; with two workers, where it is an all-reduce of
parameters; or where all replicas must be equal after every step.
"""

import torch

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.mix.pairs import PairExchange

MEETS = 4
"""The word that counts those who meet; partners that mix say 0."""


class ButterflyMixingSynchronizer(LocalStepsSynchronizer):
    """Of one part. `steps`: from one meeting of all to the next."""

    MORE_WORDS = 1

    def __init__(self, exchange: PairExchange, steps: int) -> None:
        super().__init__(exchange, AverageOuter(), steps)
        self._schedule = exchange.schedule

    def _count(self) -> None:
        self._open = True
        self._made += 1
        if self._made < self.steps:
            self._mix(self._made - 1)
        else:
            self.close_round()

    def _mix(self, step: int) -> None:
        """Go on from the mean of this worker's parameters and its partner's."""
        began, seen = now(), self.exchange.observer
        sent, wire = seen.sent_bytes, seen.wire_bytes
        if not self._anchor.is_held:
            self._anchor.remember()
        # 0: the mean is divided by the sum of weights, so the partner's parameters are the result
        weight = 0.5 if self._is_finite() else 0.0
        travels = self._anchor.travelling
        own = [p.detach() if n in travels else None for n, p in enumerate(self._parameters)]
        self._schedule.step = step
        try:
            means = self._rounds.mean(own, weight, [0.0] * (MEETS + 1))
        finally:
            # else the next meeting of all would be one of pairs
            self._schedule.step = None
        self._check_words(0)
        if self._rounds.total > 0:
            with torch.no_grad():
                for parameter, mean in zip(self._parameters, means, strict=True):
                    if mean is not None:
                        parameter.copy_(mean)
        self.totals.sent += seen.sent_bytes - sent
        self.totals.wire += seen.wire_bytes - wire
        self.totals.seconds += now() - began

    def _weigh(self, places: object) -> tuple[int, float]:
        """All replicas alike, as in a pair: so the mean over all is that of what was mixed."""
        return self.part.weights.tag().number, 1.0 / len(self.part.session.view)

    def _more_words(self, changes: object, own: float) -> tuple[float]:
        return (1.0,)

    def _landed(self) -> None:
        self._check_words(len(self._rounds.view))
        super()._landed()

    def _check_words(self, meeting: int) -> None:
        if self._rounds.words[MEETS] != meeting:
            raise UsageError(
                "mix(butterfly): some workers meet while others mix, as when a script leaves out a batch on one of "
                "them; make a step of every batch, or write local(16), which does not need it"
            )
