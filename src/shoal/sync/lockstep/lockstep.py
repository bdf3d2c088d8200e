"""Agree at every step: gradients are exchanged while the backward pass runs, bucket by bucket.

    backward_began    join the transaction
    gradient_ready    put it into its bucket; a full bucket leaves at once
    backward_ended    the transaction lets the rest leave, waits for all, and has the results delivered

After `backward()` returns, `p.grad` is the mean over all workers, as in one process with the whole batch. Bulk
synchrony: Valiant, "A bridging model for parallel computation", CACM 1990. Do not use it when some workers are much
slower than others: each step takes as long as the slowest.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.core.errors import ShoalError
from shoal.sync.batch_tag import SIZE
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.lockstep.flight import BucketFlight
from shoal.sync.lockstep.layout import BucketLayout, add_tag, lay_out_part
from shoal.sync.sparse import SparseMeans
from shoal.sync.state import State, StateTensor
from shoal.sync.synchronizer import Part, Synchronizer
from shoal.wire.bucket import CAPACITY, GradientBucket
from shoal.wire.redeal import folded
from shoal.wire.wrappers.feedback import RESIDUAL


class LockstepSynchronizer(Synchronizer):
    """Exchanges dense gradients in buckets, sparse ones whole, and running statistics with them."""

    lockstep = True
    listens_to_backward = True
    capacity = CAPACITY
    """Bytes of a bucket."""

    def __init__(self, exchange: GradientExchange) -> None:
        super().__init__()
        self.exchange = exchange
        self.all_buckets = False
        """Whether the next exchange includes frozen parameters too: the script may have written their gradients."""
        self._flight = BucketFlight()
        self._began = 0.0
        self._empty_handed = False
        self._kept: list[Tensor | None] = []
        """Of a pass without samples: the gradients this worker goes on with."""
        self._order: list[int] = []
        """Buckets of this pass, in the order all workers let them leave."""
        self._next = 0
        self._owed: dict[int, Tensor] = {}
        """Residuals of another codec, by parameter, that this exchange has no place for: added to the next gradient."""
        self._added: list[int] = []

    def open(self, part: Part, state: State | None = None) -> None:
        self.part = part
        self._sparse = SparseMeans(self.exchange, part)
        layout = self._lay_out()
        self._indices, self._tag_at, self._place = layout.indices, layout.tag_at, layout.places
        self.buckets: list[GradientBucket] = self.exchange.open(layout.plans)
        # last, because `load_state` needs the buckets
        super().open(part, state)

    def _lay_out(self) -> BucketLayout:
        layout = lay_out_part(self.part, self.capacity, self.exchange.part_of)
        # a tag has no name, and codecs leave a bucket alone in which anything has none
        add_tag(layout, self.part, own_bucket=self.exchange.compresses)
        return layout

    def backward_began(self) -> None:
        self._began = now()
        self.tag = self.part.weights.tag()
        self.exchange.weight = self.part.weights.weight()
        self.part.transaction.begin(self)
        # at once, because its bucket cannot leave without it
        self._put_tag()

    def begin_empty_handed(self) -> None:
        """Take part in a pass of the others with nothing; `backward_ended` ends it as any other."""
        self._kept = [parameter.grad for parameter in self.part.parameters]
        self._empty_handed = True
        self.backward_began()

    def begin(self) -> None:
        self._order = [b for b, group in enumerate(self._indices) if self._active(group)]
        self._next = 0
        self._added = []
        self._flight = BucketFlight(self._began)
        self._sparse.clear()

    def prepare(self) -> None:
        self.exchange.prepare()

    def _active(self, group: Sequence[int]) -> bool:
        trained = len(self.part.parameters)
        if self.all_buckets or group[0] >= trained or group[-1] >= trained:
            return True  # statistics and tags follow every exchange
        return any(self.part.parameters[i].requires_grad for i in group)

    def _put_tag(self) -> None:
        bucket, slot, _ = self._tag_at
        place = self.buckets[bucket].flat
        self.buckets[bucket].put(slot, torch.tensor(self.tag.values, dtype=place.dtype, device=place.device), 1.0)

    def tags_differ(self) -> bool:
        """After an exchange: whether a worker is at another batch, or has skipped one."""
        bucket, slot, offset = self._tag_at
        return self.tag.differs(self.buckets[bucket].views[slot][offset : offset + SIZE])

    def gradient_ready(self, index: int) -> None:
        if index not in self._place:  # sparse ones are gathered whole when the pass has ended; others lie on servers
            return
        start = now()
        number, slot = self._place[index]
        bucket = self.buckets[number]
        if bucket.filled[slot]:
            raise ShoalError(
                f"parameter {self.part.names[index]!r} got its gradient twice in one backward pass; "
                "with torch.utils.checkpoint pass use_reentrant=False"
            )
        parameter = self.part.parameters[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            raise ShoalError(
                f"parameter {self.part.names[index]!r} has a sparse gradient; only nn.Embedding(sparse=True) may"
            )
        # the view in which the result will be, so that nothing is copied back
        parameter.grad = bucket.put(slot, gradient, self.exchange.weight)
        if index in self._owed:
            bucket.add(slot, self._owed[index])
            self._added.append(index)
        packed = now()
        self.spent.encode += packed - start
        if bucket.missing == 0:
            self._start_full()
        else:
            # inside one host this thread makes the sums, between layers
            self.exchange.progress()
        self.spent.wait += now() - packed

    def _start_full(self) -> None:
        """Start full buckets, in the one order all workers keep."""
        if self.part.transaction.starts_at_end:
            return
        while self._next < len(self._order) and self.buckets[self._order[self._next]].missing == 0:
            self._start_next()

    def _start_next(self) -> None:
        self._flight.left(self._order[self._next], now())
        before = self.exchange.observer.encode_seconds
        self.exchange.start(self._order[self._next])
        coded = self.exchange.observer.encode_seconds - before
        self.spent.encode += coded
        self.spent.wait -= coded  # the caller counts all of this as waiting
        self._next += 1

    def backward_ended(self) -> None:
        self.part.transaction.end(self)

    def launch(self) -> None:
        start = now()
        for number in self._order:
            self._complete(number)
        packed = now()
        self.spent.encode += packed - start
        while self._next < len(self._order):
            self._start_next()
        self.exchange.all_started()
        self.spent.wait += now() - packed

    def _complete(self, number: int) -> None:
        """What did not come in this pass may hold a gradient from an earlier one; it counts too."""
        bucket, trained = self.buckets[number], len(self.part.parameters)
        if bucket.missing == 0 or self._empty_handed:
            return
        for slot, index in enumerate(self._indices[number]):
            if bucket.filled[slot]:
                continue
            if index >= trained:
                self.part.statistics.offer(index - trained, bucket, slot, self.exchange.weight)
            elif (gradient := self.part.parameters[index].grad) is not None:
                self.part.parameters[index].grad = bucket.put(slot, gradient, self.exchange.weight)

    def finish(self) -> None:
        began = now()
        try:
            for number in self._order:
                self._await(number)
            self._sparse.gather(empty_handed=self._empty_handed)
        finally:
            self.spent.wait += now() - began

    def _await(self, number: int) -> None:
        began = now()
        self.exchange.finish(number)
        self._flight.landed(number, began, now(), self.exchange.arrival_time(number))

    def is_complete(self) -> bool:
        started = self._next == len(self._order)
        return self.exchange.retryable and started and self.exchange.is_complete() and self._sparse.is_complete

    def retry(self) -> None:
        self.exchange.retry()
        # rows of lost members do not count, so all rows are gathered again
        self._sparse.clear()

    def finish_locally(self) -> None:
        self.exchange.finish_locally()
        self.finish()

    def abandon(self) -> bool:
        # buckets that have left cannot be called back, so they are finished
        self._order = self._order[: self._next]
        # an aggregator may send nothing before it hears this (`largest.py`)
        self.exchange.all_started()
        self._sparse.leave_out()
        return bool(self._order)

    def reset(self) -> None:
        for bucket in self.buckets:
            bucket.reset()

    def is_running(self) -> bool:
        return self.part.is_backward_running()

    def deliver(self) -> None:
        began = now()
        self._tell()
        factor = self.part.weights.rescale(self.tags_differ())
        for number in self._order:
            if factor != 1.0:
                self.buckets[number].result.mul_(factor)
            self._deliver(number)
        self._sparse.deliver(factor)
        # only now: a pass that comes to nothing still owes them
        for index in self._added:
            self._owed.pop(index, None)
        self._end_empty_handed()
        self.spent.wait += now() - began

    def _tell(self) -> None:
        """What the exchange that is complete now came to."""
        self._flight.tell(self.spent, self._order)
        self.spent.parts = [self._indices[b] for b in self._order]

    def _deliver(self, number: int) -> None:
        bucket, trained = self.buckets[number], len(self.part.parameters)
        first = self._indices[number][0]
        if first >= trained + len(self.part.statistics.tensors):
            pass  # a tag
        elif first >= trained:
            self.part.statistics.take(bucket)
        elif bucket.missing:
            for slot, index in enumerate(self._indices[number]):
                # others had a gradient of it, so every worker's optimizer must step it
                if not bucket.filled[slot] and bucket.had(slot) > 0:
                    self.part.parameters[index].grad = bucket.views[slot]
        bucket.reset()

    def _end_empty_handed(self) -> None:
        for parameter, gradient in zip(self.part.parameters, self._kept, strict=False):
            parameter.grad = gradient
        self._kept, self._empty_handed = [], False

    def bucket_view(self, index: int) -> Tensor | None:
        """What `p.grad` of parameter `index` is after an exchange; None if its gradient is sparse."""
        place = self._place.get(index)
        return self.buckets[place[0]].views[place[1]] if place is not None else None

    def had(self, index: int) -> bool:
        """Whether any worker had a gradient of parameter `index` in the last exchange."""
        if index in self.part.sparse:
            return index in self._sparse.had
        if index not in self._place:
            return False
        number, slot = self._place[index]
        return number in self._order and float(self.buckets[number].marks[slot]) > 0

    def state(self) -> State:
        shared, own = self.exchange.shared(), self.exchange.state()
        found = {name: StateTensor(tensor, "equal") for name, tensor in shared.items()}
        found |= {name: StateTensor(tensor, "sum") for name, tensor in own.items() if name not in shared}
        owed = {f"{RESIDUAL}.{self.part.names[index]}": tensor for index, tensor in self._owed.items()}
        return found | {name: StateTensor(tensor, "sum") for name, tensor in owed.items() if name not in found}

    def load_state(self, state: State) -> None:
        given = {name: one.values for name, one in state.items()}
        self.exchange.load(given)
        taken, indices = self.exchange.state(), {name: index for index, name in enumerate(self.part.names)}
        self._owed = {
            indices[layer]: tensor.clone()
            for (kind, _, layer), tensor in ((name.partition("."), one) for name, one in folded(given).items())
            if kind == RESIDUAL and f"{kind}.{layer}" not in taken and layer in indices
            if tensor.shape == self.part.parameters[indices[layer]].shape and bool(tensor.any())
        }
