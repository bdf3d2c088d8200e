"""Rounds that travel while the workers train on, and rounds of a part of the parameters: overlap and fragments.

    overlap      steps of round k | launch k | steps of round k+1 | land k, launch k+1 | …
                 landing:  anchor = outer step of the mean change of round k
                           parameters = anchor + what this worker's own steps changed since the launch
    fragments    n times a round, every steps/n steps, the next n-th of the parameters has its round

Late application, corrected by the local progress since: Wang, Liang & Joshi, "Overlap local-SGD", ICASSP 2020; Sun et
al., "CO2: Efficient distributed training with full communication-computation overlap", ICLR 2024. Fragments: Douillard
et al., "Streaming DiLoCo with overlapping communication", 2025; a fragment is whole tensors here, cut by bytes. Nothing
is lost: with `average`, parameters = start + the mean changes of all rounds, once everything has landed.

Do not use overlap where a round takes no time (inside one host the sum is made when it lands): the change is applied
later for nothing. Replicas are equal only when all has landed, which is when a pass ends, and whenever a checkpoint or
a newcomer waits for it (`Part.wants_boundary`) or SETTLE_ROUNDS rounds have passed: then all fragments
have a round that lands at once.
"""

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import UsageError, ViewEnded
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.outer import OuterOptimizer
from shoal.sync.local.round_totals import RoundInFlight
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.synchronizer import StepAction

SETTLE_ROUNDS = 16
"""Rounds after which all replicas become equal, so that they are compared and kept now and then."""


class StreamingRoundsSynchronizer(LocalStepsSynchronizer):
    """`overlap`: a round lands when the next one leaves. `fragments`: how many parts have a round of their own."""

    streams = True
    MORE_WORDS = 2

    def __init__(
        self,
        exchange: GradientExchange,
        outer: OuterOptimizer,
        steps: int,
        reset: bool = False,
        overlap: bool = False,
        fragments: int = 1,
    ) -> None:
        super().__init__(exchange, outer, steps, reset)
        self.overlap, self.fragments = overlap, fragments
        self.each = max(1, steps // fragments)
        """Steps from one launch to the next."""
        self._turn = self._launches = 0
        """The fragment that leaves next, and launches: both since all replicas were equal, where newcomers begin."""
        self._since: list[list[float]] = [[] for _ in range(fragments)]
        """By fragment: this worker's share of the samples in every interval since its last round."""
        self._bases: list[Tensor] = []
        """Of what travels: the parameters as they were when it left."""
        self._stale = False
        """Whether steps were made since the last launch."""
        self._last: set[int] = set()
        """What left last, so that it has not moved unless somebody has made a step since."""
        self._due: tuple[int, float] | None = None
        """Of a round that leaves when the next step begins: this worker's batches, and how much it counts."""
        self._wanted = False
        """Whether a landing has shown that some worker waits for equal replicas."""
        self._closing, self._left, self._closing_stepped = False, 0, False
        """Whether all fragments land at once, how many are left, and whether steps were made before."""

    def _cut(self) -> list[list[int]]:
        sizes = [parameter.numel() * parameter.element_size() for parameter in self._parameters]
        if len(sizes) < self.fragments:
            raise UsageError(
                f"fragments={self.fragments}: the model has {len(sizes)} parameter tensors, and a fragment is one or "
                f"more of them; write fragments={len(sizes)} or fewer"
            )
        self._groups = cut_evenly(sizes, self.fragments)
        self._begin_cycle()
        return self._groups

    def _begin_cycle(self) -> None:
        """All replicas are equal: go on as a worker that enters now, or both would offer different fragments."""
        self._turn = self._launches = 0
        self._since, self._last = [[] for _ in self._groups], set(range(len(self._parameters)))

    def before_forward(self) -> None:
        self._launch_due()

    def before_step(self, optimizer: Optimizer) -> StepAction:
        self._launch_due()
        self._stale = True
        if self._flight is not None:
            with suppress(ViewEnded):  # noticed again when it lands, where it can be made good
                self.exchange.progress()
        return super().before_step(optimizer)

    def _count(self) -> None:
        self._open = self._stale = True
        self._made += 1
        if self._made < self.each:
            return
        self.land()
        # known from the same landing on all workers
        if self._wanted:
            self.close_round()
            return
        if self.overlap:
            # not before the next step begins: if none does, all replicas become equal in this round
            self._due = self._weigh(self._groups[self._turn])
        else:
            self._launch_next()
            self.land()

    def _launch_due(self) -> None:
        if self._due is not None:
            self._launch_next()

    def _launch_next(self) -> None:
        group = self._groups[self._turn]
        self._turn = (self._turn + 1) % self.fragments
        self._launch(group)
        if not self._closing:
            self._last = set(group)

    def close_round(self) -> None:
        """Land what is under way; then every fragment has a round that lands at once. A collective call."""
        if self.land():
            return
        self._begin_closing(self._stale)
        self._launch_next()
        self.land()

    def _begin_closing(self, stepped: bool) -> None:
        """One round of every fragment; `stepped`: whether this worker has made steps before the first of them."""
        self._closing, self._left, self._closing_stepped = True, self.fragments - 1, stepped

    def land(self) -> bool:
        """Take in the round that is under way, if there is one; whether that has made all replicas equal.

        A collective call.
        """
        if self._flight is None:
            return False
        self._land()
        while self._closing:
            self._left -= 1
            self._launch_next()
            self._land()
        return not self._open

    def _launch(self, places: Sequence[int]) -> None:
        super()._launch(places)
        self._launches += 1
        flight, travels = self._flight, set(places)
        assert flight is not None
        with torch.no_grad():
            if flight.bad:  # it goes on from what all agreed on last
                for parameter, anchor in zip(self._parameters, self._anchor.values, strict=True):
                    parameter.copy_(anchor)
            if not self._bases:
                self._bases = [torch.empty_like(p, requires_grad=False) for p in self._parameters]
            for place in travels:
                self._bases[place].copy_(self._parameters[place])
        self._stale = False

    def _weigh(self, places: Sequence[int]) -> tuple[int, float]:
        """The mean of its shares since the last round of this fragment. What was dealt so far belongs to this round."""
        if self._due is not None:
            due, self._due = self._due, None
            return due
        tag, share = super()._weigh(places)
        if not self._closing or self._left == self.fragments - 1:  # else nothing was dealt since the last launch
            for since in self._since:
                since.append(share)
        number = self._groups.index(list(places))
        since, self._since[number] = self._since[number], []
        self.part.weights.round_launched()
        return tag, sum(since) / len(since) if since else share

    @property
    def _stepped(self) -> bool:
        return self._closing_stepped if self._closing else self._stale

    def _has_moved(self, place: int) -> bool:
        return super()._has_moved(place) or place not in self._last

    def _more_words(self, changes: Sequence[Tensor | None], own: float) -> Sequence[float]:
        return float(self.part.wants_boundary()), float(self._closing)

    def _go_on(self, place: int, after: Tensor, flight: RoundInFlight, workers: int) -> None:
        parameter = self._parameters[place]
        if self._stale:
            parameter.sub_(self._bases[place]).add_(after)
        else:  # to the bit, on all workers
            parameter.copy_(after)
        self._anchor.values[place].copy_(after)

    def _agree_on_batches(self) -> None:
        """Where numbers of batches differ, or another worker's pass has ended, all fragments land before the next step.

        With overlap this worker may have been dealt more since, and what others had can no longer be told apart.
        """
        self.is_unsettled = self.is_unsettled or self._batches_differ
        if not self._closing and (self.is_unsettled or self._rounds.words[5] > 0):
            if self.is_unsettled or self._stale:
                self._refuse_overlap()
            self._begin_closing(stepped=True)
        if not self.is_unsettled or not self._left:
            self.part.weights.rescale(self.is_unsettled)
            self.is_unsettled = False
        assert self.formed is not None
        self.part.weights.round_landed(self.formed)

    def _refuse_overlap(self) -> None:
        if self.overlap:
            raise UsageError(
                f"local({self.steps}, overlap=true): workers came to a round with different numbers of batches, as "
                "when a script leaves out a batch on one of them; make a step of every batch, or remove overlap=true"
            )

    def _landed(self) -> None:
        if self._closing and not self._left:
            super()._landed()
            self._closing = self._wanted = False
            self._begin_cycle()
        elif not self._closing:
            self._wanted = self._rounds.words[4] > 0 or self._launches >= SETTLE_ROUNDS


def cut_evenly(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Places of consecutive sizes, in as many parts, each near to the same total and none empty."""
    groups: list[list[int]] = []
    place, left = 0, sum(sizes)
    for number in range(parts):
        goal, group, total = left / (parts - number), list[int](), 0
        # one is left for every part that follows
        most = len(sizes) - (parts - number - 1)
        # a tensor belongs here if at least half of it fits
        while place < most and (not group or total + sizes[place] / 2 <= goal or number == parts - 1):
            group.append(place)
            total, place = total + sizes[place], place + 1
        groups.append(group)
        left -= total
    return groups
