"""Rounds whose number of steps is chosen while the run goes on: `local(auto)`. The rule is in `round_length.py`.

With every round some more numbers are added up, so that all workers know the same:

    seconds of a step of this round          and of the exchange of the round before (its fourth power, inverted: the
                                             mean of these is near to the least, which nobody waited in)
    weight * |change|^2 of this round        and |mean change|^2 of the round before, which only its landing has told

So the drift of a round is known with the next one. A newcomer is told the length with the outer state.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.outer import OuterOptimizer
from shoal.sync.local.round_length import MOST, RoundFigures, RoundLengthChooser
from shoal.sync.local.round_totals import RoundInFlight
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.observer import CodecSwitched
from shoal.sync.state import State, StateTensor

LENGTH = "round.length"
"""In a state: steps of the next round, the mean square change of the last one, and usual seconds."""
POWER = 4
SHORTEST, LONGEST = 1e-9, 1e6
"""Seconds that a step or an exchange may take."""


class AdaptiveRoundsSynchronizer(LocalStepsSynchronizer):
    """Of one part; `chooser` decides."""

    MORE_WORDS = 5

    def __init__(
        self,
        exchange: GradientExchange,
        outer: OuterOptimizer,
        reset: bool = False,
        average_state: bool = False,
        clock: Callable[[], float] = now,
    ) -> None:
        self.chooser, self._clock = RoundLengthChooser(), clock
        super().__init__(exchange, outer, self.chooser.steps, reset, average_state)
        self._began = 0.0
        self._ended: float | None = None
        """When the exchange of this round began, and when the last one ended."""
        self._exchange_seconds = 0.0
        self._mean_square: float | None = None
        """Of the last round's mean change."""
        self._told = torch.tensor([self.steps, -1.0, 0.0, 0.0], dtype=torch.float64)
        """As in a state; below 0: nothing is known of the last round."""

    def _launch(self, places: Sequence[int]) -> None:
        self._began = self._clock()
        super()._launch(places)

    def _more_words(self, changes: Sequence[Tensor | None], own: float) -> Sequence[float]:
        square = own * _square(changes) if own else 0.0
        step = (self._began - self._ended) / self._made if self._ended is not None and self._made else 0.0
        if self._mean_square is None or self._exchange_seconds <= 0 or step <= 0:
            # the first 0 says that this worker has measured nothing yet
            return 0.0, 0.0, 0.0, square, 0.0
        return 1.0, step, self._exchange_seconds**-POWER, square, self._mean_square

    def _take(self, means: Sequence[Tensor | None], flight: RoundInFlight) -> None:
        self._mean_square = _square(means[: len(self._parameters)])
        super()._take(means, flight)

    def _landed(self) -> None:
        super()._landed()
        moment = self._clock()
        self._exchange_seconds, self._ended = moment - self._began, moment
        self._choose()

    def _choose(self) -> None:
        """By the sums of the words alone, which are the same bits on all workers."""
        known, step, inverse, square, mean = self._rounds.words[4:]
        last, total = float(self._told[1]), self._rounds.total
        seconds = read_seconds(known, step, inverse)
        if seconds is not None:
            common = mean / known
            # the mean square less the square of the mean is what the changes differ by
            drift = max(0.0, last - common) / common if last >= 0 and common > 0 else None
            if self.chooser.update(RoundFigures(*seconds, drift)):
                self.exchange.observer.report(CodecSwitched(f"local({self.chooser.steps})", self.chooser.reason))
        told = [self.chooser.steps, square / total if total > 0 else -1.0, *self.chooser.typical]
        self._told.copy_(torch.tensor(told, dtype=torch.float64))
        self.steps = self.chooser.steps

    def state(self) -> State:
        return {**super().state(), LENGTH: StateTensor(self._told, "equal")}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        saved = state.get(LENGTH)
        if saved is not None and saved.values.shape == self._told.shape and 1 <= float(saved.values[0]) <= MOST:
            self._told.copy_(saved.values)
            self.chooser.steps = self.steps = int(self._told[0])
            self.chooser.typical = (float(self._told[2]), float(self._told[3]))


def read_seconds(known: float, step: float, inverse: float) -> tuple[float, float] | None:
    """Seconds of a step and of an exchange, by the sums of what `known` workers said; None if these cannot be sums of
    seconds: a remote worker may add anything to them."""
    if not (known > 0 and 0 < step / known < LONGEST and LONGEST**-POWER < inverse / known < SHORTEST**-POWER):
        return None
    return step / known, (inverse / known) ** (-1 / POWER)


def _square(tensors: Sequence[Tensor | None]) -> float:
    """The square of their norm, all together."""
    return sum(float(tensor.detach().double().square().sum()) for tensor in tensors if tensor is not None)
