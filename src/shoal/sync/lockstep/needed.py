"""As lock-step, but gradients that the next forward pass needs first travel first, and nobody waits at the end.

    backward … │ step │ forward of layer 1, 2, 3 …
    ── bucket of layers 8-9 ──(overtaken)────── in
         ── bucket of layers 3-7 ──(overtaken)──── in
                     ── bucket of layers 1-2 ── in │ waited for by layer 1, and by nobody else

Hashemi et al., "TicTac: Accelerating Distributed Deep Learning with Communication Scheduling", MLSys 2019; Jayarajan et
al., "Priority-based Parameter Propagation for Distributed DNN Training", MLSys 2019. When a pass has ended its buckets
are `pending`; `p.grad` is a tensor that waits when it is touched (sync/touch.py). One bucket more, of a single number,
says whether any worker's gradients were not finite, so that a step can still be left out as a whole.
Do not use it where the engine works in the training thread, or where members may be lost: a step stays open while the
next one begins.
"""

from functools import partial

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.core.errors import ShoalError
from shoal.sync import touch
from shoal.sync.batch_tag import SIZE
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.lockstep.layout import BucketLayout, device_of, lay_out_part
from shoal.sync.lockstep.lockstep import LockstepSynchronizer
from shoal.sync.state import State
from shoal.sync.synchronizer import Part
from shoal.wire.bucket import BucketPlan, BucketSpace, GradientSlot


class NeededOrderSynchronizer(LockstepSynchronizer):
    """Over an engine that works in the background, with members that stay."""

    capacity = 1 << 20
    """Smaller buckets than elsewhere: the first is complete earlier. Inside one, chunks overtake."""
    is_open_ended = True
    figures = 0
    """Numbers that travel with the word."""

    def __init__(self, exchange: GradientExchange) -> None:
        super().__init__(exchange)
        self.pending: dict[int, None] = {}
        """Buckets of the last exchange that nobody has waited for yet."""
        self.spoiled = False
        """Whether some worker's gradients were not finite in the last exchange; known once the word is finished."""
        self._sums: list[Tensor] = []
        self._touched: list[int] = []
        self._abandoned = False

    def open(self, part: Part, state: State | None = None) -> None:
        super().open(part, state)
        last = [n for n, group in enumerate(self._indices) if group[0] < len(part.parameters)]
        # the reverse of the backward pass, until a forward pass has shown its order
        self._set_priorities(last[::-1])

    def _lay_out(self) -> BucketLayout:
        """The word comes last: it is said when all gradients are known. The tag travels with it."""
        layout = lay_out_part(self.part, self.capacity, self.exchange.part_of)
        size = 1 + SIZE + self.figures
        space = BucketSpace(size + 1, torch.float32, device_of(self.part))
        layout.plans.append(BucketPlan((GradientSlot(0, 0, torch.Size([size])),), size, space))
        layout.indices.append([len(self.part.parameters) + len(self.part.statistics.tensors)])
        self.word = len(layout.plans) - 1
        layout.tag_at = (self.word, 0, 1)
        return layout

    def _put_tag(self) -> None:
        """With the word."""

    def _set_priorities(self, needed: list[int]) -> None:
        """Buckets leave in this order; the word and statistics, which are waited for at once, before all others."""
        self._urgencies = [0] * len(self._indices)
        for place, number in enumerate(needed):
            self._urgencies[number] = 1 + place
        self.exchange.set_priorities(self._urgencies)

    def backward_began(self) -> None:
        self.settle()
        self._sums.clear()
        super().backward_began()

    def gradient_arriving(self) -> None:
        # autograd is about to add to `p.grad`, whose content must have come
        if self.pending:
            self.settle()

    def _start_next(self) -> None:
        number = self._order[self._next]
        if number == self.word:
            bad = any(not bool(one.isfinite()) for one in self._sums)
            said = self.said() if not self._empty_handed else [0.0] * self.figures
            word = torch.tensor([float(bad), *self.tag.values, *said], device=self.buckets[number].flat.device)
            self.buckets[number].put(0, word, 1.0)
        super()._start_next()
        if self._indices[number][0] < len(self.part.parameters):
            bucket = self.buckets[number]
            self._sums.append(bucket.flat[: bucket.plan.payload].sum())

    def said(self) -> list[float]:
        """This worker's figures."""
        return []

    def heard(self, figures: Tensor) -> None:
        """The sums of everybody's figures."""

    def _complete(self, number: int) -> None:
        if number != self.word:
            super()._complete(number)

    def _deliver(self, number: int) -> None:
        if number == self.word:
            word = self.buckets[number].result
            self.spoiled = float(word[0]) > 0
            self.heard(word[1 + SIZE : 1 + SIZE + self.figures])
            self._check_tags()
            self.buckets[number].reset()
            return
        for view in self.buckets[number].views:
            touch.release(view)
        super()._deliver(number)

    def _check_tags(self) -> None:
        """Gradients of different batches cannot be told apart any more; all may skip the same one."""
        everybody = float(self.buckets[self.word].result[1]) == len(self.exchange.peers) + 1
        if not self.part.transaction.starts_at_end and not everybody and self.tags_differ():
            raise ShoalError(
                "a worker has skipped a batch that others train on, which steps that overlap cannot make up for; "
                "skip batches on all workers alike, or use order(ready)"
            )

    def begin(self) -> None:
        super().begin()
        self._abandoned = False

    def abandon(self) -> bool:
        self._abandoned = True
        return super().abandon()

    def finish(self) -> None:
        # at the end: somebody is short of samples, and takes over what the step came to
        if self.part.transaction.starts_at_end or self._abandoned:
            super().finish()
            return
        self.pending = dict.fromkeys(self._order)
        self._touched.clear()
        for number in self._order:
            if not self._may_wait(number):
                self.finish_bucket(number)
        self._sparse.gather(empty_handed=self._empty_handed)

    def deliver(self) -> None:
        if self.part.transaction.starts_at_end:
            super().deliver()
            return
        # 1: members stay, so no share of a lost one has to be made up for
        self._sparse.deliver(1.0)
        for number in self.pending:
            if number != self.word:
                for view in self.buckets[number].views:
                    touch.watch(view, partial(self._need, number))
        self._end_empty_handed()

    def _may_wait(self, number: int) -> bool:
        """Whether nothing has to be known of it yet: not of what this worker lacks, nor of statistics."""
        return number == self.word or (
            self._indices[number][0] < len(self.part.parameters) and self.buckets[number].missing == 0
        )

    def _need(self, number: int) -> None:
        """A touch of one of its gradients, or of a parameter that waits for it."""
        self._touched.append(number)
        self.bring(number)

    def bring(self, number: int) -> None:
        """Bring what waits for a bucket up to date; whoever defers updates puts its own in this place."""
        self.finish_bucket(number)

    def need(self, parameter: Tensor, number: int) -> None:
        """Bring it up to date when `parameter` is touched."""
        touch.watch(parameter, partial(self._need, number))

    def finish_bucket(self, number: int) -> None:
        """Wait for one bucket; `p.grad` of its parameters is the mean then."""
        if number not in self.pending:
            return
        began = now()
        self._await(number)
        del self.pending[number]
        self._deliver(number)
        if not self.pending:
            self._close()
        self.spent.wait += now() - began

    def settle(self) -> None:
        """Bring everything up to date."""
        for number in list(self.pending):
            self.bring(number)

    def _close(self) -> None:
        """The exchange is complete; the next one follows what this one has shown of the forward pass."""
        self._tell()
        order = list(dict.fromkeys(self._touched))
        rest = sorted(
            (n for n, u in enumerate(self._urgencies) if u and n not in order), key=self._urgencies.__getitem__
        )
        # one touch shows no order
        if len(order) > 1:
            self._set_priorities(order + rest)

    def had(self, index: int) -> bool:
        place = self._place.get(index)
        if place is not None and place[0] in self.pending:  # only full buckets are waited for later
            return True
        return super().had(index)

    def pending_of(self, index: int) -> tuple[int, Tensor] | None:
        """The bucket that parameter `index` waits for, and where its gradient will be; None if it has come."""
        place = self._place.get(index)
        if place is None or place[0] not in self.pending:
            return None
        number, slot = place
        return number, self.buckets[number].views[slot]
