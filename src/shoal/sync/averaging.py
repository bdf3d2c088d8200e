"""The mean of some tensors over all members, in one transaction: for local steps and outer optimizers.

    rounds = AveragingRound(exchange, part, shapes)     once: memory for tensors of these shapes
    means = rounds.mean(tensors)                        a collective call; whoever is lost in the middle does not count

The exchange is the plan's, so a codec of the plan works on what travels here.
"""

from collections.abc import Sequence

from torch import Tensor

from shoal.core.clock import now
from shoal.sync.cost import ExchangeCost
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.synchronizer import Part
from shoal.wire.bucket import CAPACITY, lay_out


class AveragingRound:
    """One after the other, of tensors like `like`; a participant of the part's transactions."""

    def __init__(self, exchange: GradientExchange, part: Part, like: Sequence[Tensor], spent: ExchangeCost) -> None:
        """`spent` counts the seconds; `like` are named as the part's parameters if there are as many."""
        self.exchange, self.part, self.spent = exchange, part, spent
        names = part.names if len(like) == len(part.names) else [f"tensor{n}" for n in range(len(like))]
        self._buckets = exchange.open(lay_out(like, CAPACITY, names))
        self._tensors: Sequence[Tensor] = ()
        self._means: dict[int, Tensor] = {}
        self._started = self._members = 0

    def mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Everybody's mean of each; what is returned is overwritten by the next round."""
        self._tensors = [tensor.detach() for tensor in tensors]
        self.part.transaction.run(self)
        return [self._means[index] for index in range(len(tensors))]

    def begin(self) -> None:
        self._started = 0

    def prepare(self) -> None:
        self.exchange.prepare()

    def launch(self) -> None:
        began, self._members = now(), len(self.part.session.view)
        self.exchange.weight = 1.0 / self._members
        for number, bucket in enumerate(self._buckets):
            for slot, place in enumerate(bucket.plan.slots):
                bucket.put(slot, self._tensors[place.index], self.exchange.weight)
            self.exchange.start(number)
            self._started += 1
        self.exchange.all_started()
        self.spent.encode += now() - began

    def finish(self) -> None:
        began = now()
        try:
            for number in range(self._started):
                self.exchange.finish(number)
        finally:
            self.spent.wait += now() - began

    def is_complete(self) -> bool:
        started = self._started == len(self._buckets)
        return self.exchange.retryable and started and self.exchange.is_complete()

    def retry(self) -> None:
        self.exchange.retry()

    def finish_locally(self) -> None:
        self.exchange.finish_locally()
        self.finish()

    def abandon(self) -> bool:
        self.exchange.all_started()
        return self._started > 0

    def reset(self) -> None:
        for bucket in self._buckets:
            bucket.reset()

    def deliver(self) -> None:
        factor = self._members / len(self.part.session.committed_view)  # above 1 if members were lost since the launch
        for bucket in self._buckets:
            if factor != 1.0:
                bucket.result.mul_(factor)
            self._means |= {place.index: bucket.views[slot] for slot, place in enumerate(bucket.plan.slots)}
            bucket.reset()

    def is_running(self) -> bool:
        return False
