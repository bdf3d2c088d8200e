"""The weighted mean of some tensors over all members, in one transaction: for local steps and outer optimizers.

    rounds = AveragingRound(exchange, part, like, spent)    once: memory for tensors like these
    means = rounds.mean(tensors, weight, words)             a collective call; members lost meanwhile do not count
    rounds.launch_round(…); means = rounds.land_round()     the same in two calls, to train in between

The exchange is the plan's, so its codecs apply here too. Running statistics of the part, and the words (a few numbers
that are summed), are sent uncoded.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.membership.view import MembershipView
from shoal.sync.cost import ExchangeCost
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.synchronizer import Part
from shoal.wire.bucket import CAPACITY, BucketPlan, GradientBucket, lay_out

NEAR_ONE = 1e-6
"""Weights whose sum differs from 1 only by rounding need no correction."""


class AveragingRound:
    """Makes one round after the other, of tensors shaped like `like`; a participant of the part's transactions."""

    def __init__(
        self,
        exchange: GradientExchange,
        part: Part,
        like: Sequence[Tensor],
        spent: ExchangeCost,
        names: Sequence[str] = (),
        words: int = 0,
        fragments: Sequence[Sequence[int]] = (),
    ) -> None:
        """`spent` counts the seconds; without `names`, `like` are named as the part's parameters if there are as many.

        Only tensors with names are coded. `words`: how many numbers are summed in each round. `fragments`: groups of
        tensors that may travel without the others, so no bucket holds tensors of two of them.
        """
        self.exchange, self.part, self.spent = exchange, part, spent
        numbered = part.names if len(like) == len(part.names) else [f"tensor{n}" for n in range(len(like))]
        self.size = len(like)
        plans, self._indices = _lay_out_apart(like, names or numbered, fragments or [range(len(like))])
        statistics = lay_out(part.statistics.tensors, CAPACITY)
        # 64 bits, because counts of samples and their squares are added up exactly
        (word,) = lay_out([torch.zeros(1 + words, dtype=torch.float64)])
        self._buckets = exchange.open([*plans, *statistics, word])
        self._first_statistics, self._word = len(plans), len(plans) + len(statistics)
        self._place = {i: (number, slot) for number, group in enumerate(self._indices) for slot, i in enumerate(group)}
        self._tensors: Sequence[Tensor | None] = ()
        self._weight = 1.0
        self._offered: tuple[float, ...] = ()
        self._order: list[int] = []
        """Buckets of this round, the same on all workers."""
        self._started = 0
        self.words: list[float] = [0.0] * words
        """Of the last round: the sums of all participants' words."""
        self.total = 1.0
        """Of the last round: the sum of all participants' weights."""

    def mean(
        self, tensors: Sequence[Tensor | None], weight: float | None = None, words: Sequence[float] = ()
    ) -> list[Tensor | None]:
        """Return the weighted mean of each tensor (equal weights without `weight`); the next round overwrites it.

        All workers must leave out the same tensors (None). A worker of weight 0 offers nothing and receives the others'
        mean; if all weights are 0, so are the means.
        """
        self.launch_round(tensors, weight, words)
        return self.land_round()

    def launch_round(
        self, tensors: Sequence[Tensor | None], weight: float | None = None, words: Sequence[float] = ()
    ) -> None:
        """Send everything. The tensors may change from now on; nothing else may be exchanged until it has landed."""
        self._tensors = [tensor.detach() if tensor is not None else None for tensor in tensors]
        self._weight = 1.0 / len(self.part.session.view) if weight is None else weight
        self._offered = (self._weight, *words)
        self.part.transaction.start(self)

    def land_round(self) -> list[Tensor | None]:
        """Wait for the round and return its means, which are valid until the next one is sent."""
        self.view: MembershipView = self.part.transaction.conclude(self)
        return [self._mean_of(index) for index in range(len(self._tensors))]

    def _mean_of(self, index: int) -> Tensor | None:
        number, slot = self._place[index]
        return self._buckets[number].views[slot] if self._tensors[index] is not None else None

    def begin(self) -> None:
        self._started, self._order = 0, [number for number in range(len(self._buckets)) if self._travels(number)]

    def _travels(self, number: int) -> bool:
        if number >= self._first_statistics:
            return True
        return any(self._tensors[index] is not None for index in self._indices[number])

    def prepare(self) -> None:
        self.exchange.prepare()

    def launch(self) -> None:
        began = now()
        self.exchange.weight = self._weight
        for number in self._order:
            self._fill(number, self._buckets[number])
            self.exchange.start(number)
            self._started += 1
        self.exchange.all_started()
        self.spent.encode += now() - began

    def _fill(self, number: int, bucket: GradientBucket) -> None:
        if number == self._word:
            bucket.put(0, torch.tensor(self._offered, dtype=torch.float64), 1.0)
            return
        for slot, place in enumerate(bucket.plan.slots):
            if self._weight == 0.0:  # its values may be NaN, and 0 * NaN is NaN
                continue
            if number >= self._first_statistics:
                self.part.statistics.offer(place.index, bucket, slot, self._weight)
            elif (tensor := self._tensors[self._indices[number][slot]]) is not None:
                bucket.put(slot, tensor, self._weight)

    def finish(self) -> None:
        began = now()
        try:
            for number in self._order[: self._started]:
                self.exchange.finish(number)
        finally:
            self.spent.wait += now() - began

    def is_complete(self) -> bool:
        started = self._started == len(self._order)
        return self.exchange.retryable and started and self.exchange.is_complete()

    def retry(self) -> None:
        self.exchange.retry()

    def finish_locally(self) -> None:
        self.exchange.finish_locally()
        self.finish()

    def abandon(self) -> bool:
        # an aggregator may send nothing before it hears this (`largest.py`), and all must finish what started
        self.exchange.all_started()
        return self._started > 0

    def reset(self) -> None:
        for bucket in self._buckets:
            bucket.reset()

    def deliver(self) -> None:
        self.total, *self.words = self._buckets[self._word].views[0].tolist()
        for number in self._order:
            bucket = self._buckets[number]
            if self._first_statistics <= number < self._word:
                self.part.statistics.take(bucket)  # divides by the weights of those that had them
            elif number < self._first_statistics and abs(self.total - 1.0) > NEAR_ONE:
                # below 1 if members were lost since the launch, or have weight 0
                bucket.result.mul_(1.0 / self.total if self.total > 0 else 0.0)
            bucket.reset()

    def is_running(self) -> bool:
        return False


def _lay_out_apart(
    like: Sequence[Tensor], names: Sequence[str], fragments: Sequence[Sequence[int]]
) -> tuple[list[BucketPlan], list[list[int]]]:
    """Return buckets and the tensors in each; frozen ones have buckets of their own, which need not travel."""
    plans: list[BucketPlan] = []
    indices: list[list[int]] = []
    for fragment in fragments:
        for trained in (True, False):
            group = [index for index in fragment if like[index].requires_grad is trained]
            for plan in lay_out([like[index] for index in group], CAPACITY, [names[index] for index in group]):
                plans.append(plan)
                indices.append([group[place.index] for place in plan.slots])
    return plans, indices
