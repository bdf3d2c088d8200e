"""Agree at every step: gradients are exchanged while the backward pass runs, bucket by bucket.

After `backward()` returns, `p.grad` is the mean over all workers, as in one process with the whole batch. Bulk
synchrony: Valiant, "A bridging model for parallel computation", CACM 1990. Do not use it when some workers are much
slower than others: each step takes as long as the slowest.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.core.errors import ShoalError, ViewEnded
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.pace.base import ExchangeCost, SyncPace
from shoal.sync.pace.flight import BucketFlight
from shoal.sync.pace.tag import SIZE, BatchTag, tag_plan, with_tag
from shoal.sync.sparse import mean_of_sparse
from shoal.sync.statistics import RunningStatistics
from shoal.wire.bucket import CAPACITY, BucketPlan, GradientBucket, lay_out


class EveryPace(SyncPace):
    """Exchanges dense gradients in buckets, sparse ones whole, and running statistics with them."""

    capacity = CAPACITY
    """Bytes of a bucket."""
    tag = BatchTag()
    """What this worker says of its batches; set before a pass begins."""

    def __init__(
        self,
        exchange: GradientExchange,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        sparse: Sequence[int] = (),
        statistics: RunningStatistics | None = None,
    ) -> None:
        self.exchange, self.names, self.parameters = exchange, names, parameters
        self.session = exchange.session
        self.sparse = set(sparse)
        self.statistics = statistics or RunningStatistics([])
        self.spent = ExchangeCost()
        self._open()
        self._flight = BucketFlight()
        self._began = 0.0
        self._empty_handed = False
        self._midway = False
        self.all_buckets = False
        """Whether the next exchange includes frozen parameters too: the script may have written their gradients."""
        self._sparse_had: set[int] = set()
        """Sparse gradients that anybody had in the last exchange."""

    def _open(self) -> None:
        plans, self._members = self._lay_out()
        self.buckets: list[GradientBucket] = self.exchange.open(plans)
        self._place = {i: (b, s) for b, group in enumerate(self._members) for s, i in enumerate(group)}
        self._order: list[int] = []
        self._next = 0

    def _lay_out(self) -> tuple[list[BucketPlan], list[list[int]]]:
        """Trainable parameters first, frozen ones in buckets of their own: those travel only once they are trained."""
        dense = [i for i in range(len(self.parameters)) if i not in self.sparse]
        trained = [i for i in dense if self.parameters[i].requires_grad]
        frozen = [i for i in dense if not self.parameters[i].requires_grad]
        groups = [trained, frozen, self.statistics.indices(len(self.parameters))]
        tensors = [*self.parameters, *self.statistics.tensors]
        plans: list[BucketPlan] = []
        members: list[list[int]] = []
        for group in groups:
            named = [self.names[i] for i in group] if group is not groups[2] else []
            for plan in lay_out([tensors[i] for i in group], self.capacity, named):
                plans.append(plan)
                members.append([group[slot.index] for slot in plan.slots])
        self._add_tag(plans, members)
        return plans, members

    def _add_tag(self, plans: list[BucketPlan], members: list[list[int]]) -> None:
        """At the end of a bucket of gradients; where codecs take those, in a bucket of its own."""
        index = len(self.parameters) + len(self.statistics.tensors)
        trained = [n for n, group in enumerate(members) if group[0] < len(self.parameters)]
        host = next((n for n in trained if plans[n].space.dtype.is_floating_point), None)
        if self.exchange.compresses or host is None:
            device = self.parameters[0].device if self.parameters else torch.device("cpu")
            plans.append(tag_plan(0, device))
            members.append([index])
            self._tag_at = (len(plans) - 1, 0, 0)
        else:
            plans[host] = with_tag(plans[host], len(plans[host].slots))
            members[host].append(index)
            self._tag_at = (host, len(members[host]) - 1, 0)

    def begun(self) -> None:
        if self._midway:
            self._forget()
        self._midway = True
        self._began = now()
        self._order = [b for b, group in enumerate(self._members) if self._active(group[0], group)]
        self._next = 0
        if self.late:
            self.session.outside(self.exchange.prepare)
        else:
            self._enter()
        self._put_tag()
        self._flight = BucketFlight(self._began)

    def _put_tag(self) -> None:
        bucket, slot, _ = self._tag_at
        place = self.buckets[bucket].flat
        self.buckets[bucket].put(slot, torch.tensor(self.tag.values, dtype=place.dtype, device=place.device), 1.0)

    def tags_differ(self) -> bool:
        """After an exchange: whether a worker is at another batch, or has skipped one."""
        bucket, slot, offset = self._tag_at
        return self.tag.differs(self.buckets[bucket].views[slot][offset : offset + SIZE])

    def _enter(self) -> None:
        """The operation begins, in a view whose members have all done with the one before."""
        while self._order:
            self.session.enter(self._holds)
            try:
                self.exchange.prepare()
            except ViewEnded:
                self.session.settle()
            else:
                return

    def _holds(self) -> bool:
        """Whether this worker could finish from what is there; asked by another thread when a view ends."""
        return self.exchange.retryable and self._next == len(self._order) and self.exchange.is_complete()

    def _forget(self) -> None:
        """An exception ended the last pass halfway, on all workers alike: what had started comes to nothing."""
        self._order = self._order[: self._next]
        self._agree()
        for bucket in self.buckets:
            bucket.reset()

    def _active(self, first: int, group: Sequence[int]) -> bool:
        if self.all_buckets or first >= len(self.parameters) or group[-1] >= len(self.parameters):
            # statistics and tags follow every exchange
            return True
        return any(self.parameters[i].requires_grad for i in group)

    def ready(self, index: int) -> None:
        if index in self.sparse:  # gathered whole when the pass has ended
            return
        start = now()
        number, slot = self._place[index]
        bucket = self.buckets[number]
        if bucket.filled[slot]:
            raise ShoalError(
                f"parameter {self.names[index]!r} got its gradient twice in one backward pass; "
                "with torch.utils.checkpoint pass use_reentrant=False"
            )
        parameter = self.parameters[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            raise ShoalError(
                f"parameter {self.names[index]!r} has a sparse gradient; only nn.Embedding(sparse=True) may"
            )
        parameter.grad = bucket.put(slot, gradient, self.exchange.weight)
        packed = now()
        self.spent.encode += packed - start
        if bucket.missing == 0:
            self._launch()
        else:
            self.exchange.progress()
        self.spent.wait += now() - packed

    def _launch(self) -> None:
        """Start full buckets, in the one order all workers keep."""
        while not self.late and self._next < len(self._order) and self.buckets[self._order[self._next]].missing == 0:
            self._start_next()

    def _start_next(self) -> None:
        self._flight.left(self._order[self._next], now())
        before = self.exchange.observer.encode_seconds
        self.exchange.start(self._order[self._next])
        coded = self.exchange.observer.encode_seconds - before
        self.spent.encode += coded
        self.spent.wait -= coded  # the caller counts all of this as waiting
        self._next += 1

    def ended(self) -> None:
        began = self._leave()
        self._agree()
        factor = self.rescale()
        for number in self._order:
            if factor != 1.0:
                self.buckets[number].result.mul_(factor)
            self._deliver(number)
        self._deliver_sparse(factor)
        self._midway = False
        self.spent.wait += now() - began

    def _leave(self) -> float:
        """All that this pass had leaves; returns when it was packed: what follows is waiting."""
        start = now()
        for number in self._order:
            self._complete(number)
        packed = now()
        self.spent.encode += packed - start
        if self.late:
            self._enter()
        while self._next < len(self._order):
            self._start_next()
        return packed

    def _agree(self) -> None:
        """Finish everything, together with whoever is a member in the end."""
        self.exchange.all_started()
        alone = not self._order
        while not alone:
            self.session.expect_complete(True)
            try:
                self._finish()
                self.session.complete()
                self._tell()
                return
            except ViewEnded:
                if self.session.settle():
                    self.exchange.finish_locally()
                    alone = True
                else:
                    self.exchange.retry()
            finally:
                self.session.expect_complete(False)
        self._finish()
        self._tell()

    def _finish(self) -> None:
        for number in self._order:
            self._await(number)

    def _await(self, number: int) -> None:
        began = now()
        self.exchange.finish(number)
        self._flight.landed(number, began, now(), self.exchange.arrival_time(number))

    def _tell(self) -> None:
        """What the exchange that is complete now came to."""
        self._flight.tell(self.spent, self._order)
        self.spent.parts = [self._members[b] for b in self._order]

    def state(self) -> dict[str, Tensor]:
        return self.exchange.state()

    def shared(self) -> dict[str, Tensor]:
        return self.exchange.shared()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.exchange.load(state)

    def stand_in(self) -> None:
        kept = [parameter.grad for parameter in self.parameters]
        self._empty_handed = True
        self.begun()
        self.ended()
        self._empty_handed = False
        for parameter, gradient in zip(self.parameters, kept, strict=True):
            parameter.grad = gradient

    def _complete(self, number: int) -> None:
        """What did not come in this pass may hold a gradient from an earlier one; it counts too."""
        bucket = self.buckets[number]
        if bucket.missing == 0 or self._empty_handed:
            return
        for slot, index in enumerate(self._members[number]):
            if bucket.filled[slot]:
                continue
            if index >= len(self.parameters):
                self.statistics.offer(index - len(self.parameters), bucket, slot, self.exchange.weight)
            elif (gradient := self.parameters[index].grad) is not None:
                self.parameters[index].grad = bucket.put(slot, gradient, self.exchange.weight)

    def _deliver(self, number: int) -> None:
        bucket = self.buckets[number]
        if self._members[number][0] >= len(self.parameters) + len(self.statistics.tensors):
            pass  # a tag
        elif self._members[number][0] >= len(self.parameters):
            self.statistics.take(bucket)
        elif bucket.missing:
            for slot, index in enumerate(self._members[number]):
                if not bucket.filled[slot] and bucket.had(slot) > 0:
                    self.parameters[index].grad = bucket.views[slot]
        bucket.reset()

    def bucket_view(self, index: int) -> Tensor | None:
        """What `p.grad` of parameter `index` is after an exchange; None if its gradient is sparse."""
        place = self._place.get(index)
        return self.buckets[place[0]].views[place[1]] if place is not None else None

    def had(self, index: int) -> bool:
        """Whether any worker had a gradient of parameter `index` in the last exchange."""
        if index in self.sparse:
            return index in self._sparse_had
        number, slot = self._place[index]
        return number in self._order and float(self.buckets[number].marks[slot]) > 0

    def _deliver_sparse(self, factor: float) -> None:
        for index in sorted(self.sparse):
            parameter = self.parameters[index]
            mine = None if self._empty_handed else parameter.grad
            before = parameter.grad
            parameter.grad = mean_of_sparse(self.exchange, parameter, mine, factor)
            changed = parameter.grad is not before
            (self._sparse_had.add if changed else self._sparse_had.discard)(index)
