"""Buckets: many small gradients as one flat tensor, so that what travels is few and large.

    | gradient of the last layer | … | gradient of an earlier one | one mark per gradient | perhaps a tag |

A mark says whether a worker had this gradient in this exchange. Marks are summed with the rest, so after the
exchange every worker knows which gradients no worker had, without another message: those stay unchanged, exactly as in
one process. One bucket of an exchange may also carry a tag (sync/batch_tag.py), a slot behind the marks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.wire.layout import FlatLayout

CAPACITY = 4 << 20
"""Bytes of a bucket: small enough to leave while the backward pass still runs and to stay in a cache."""


@dataclass(frozen=True)
class BucketSpace:
    """A flat tensor to be exchanged: what an engine needs to know of a bucket."""

    numel: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class GradientSlot:
    """A gradient's place in its bucket."""

    index: int
    """Index of the parameter in the caller's list."""
    offset: int
    shape: torch.Size
    name: str = ""
    """Name of the parameter; empty for entries that are not gradients, which no codec touches."""


@dataclass(frozen=True)
class BucketPlan:
    """The content of a bucket as plain data, the same on every worker."""

    slots: tuple[GradientSlot, ...]
    payload: int
    """Elements that are gradients."""
    space: BucketSpace

    @property
    def layout(self) -> FlatLayout:
        """The gradients in it, as codecs see them."""
        return FlatLayout.of([(slot.name, tuple(slot.shape)) for slot in self.slots])


def lay_out(
    tensors: Sequence[Tensor], capacity: int = CAPACITY, names: Sequence[str] = (), parts: Sequence[int] = ()
) -> list[BucketPlan]:
    """Deal tensors to buckets from the last to the first: the order in which a backward pass finishes them.

    Inside a bucket matrices come before vectors, so that a codec that leaves the vectors as they are sees one run.
    `parts`: a number for each tensor; those with different ones never share a bucket.
    """
    plans: list[BucketPlan] = []
    open_: dict[tuple[torch.dtype, torch.device, int], list[int]] = {}
    for index in reversed(range(len(tensors))):
        tensor = tensors[index]
        key = (tensor.dtype, tensor.device, parts[index] if parts else 0)
        group = open_.setdefault(key, [])
        group.append(index)
        # Closed after the tensor that fills it, so a tensor larger than a bucket has one of its own and is never cut.
        if sum(tensors[i].numel() for i in group) * tensor.element_size() >= capacity:
            plans.append(_plan(tensors, open_.pop(key), names))
    plans.extend(_plan(tensors, group, names) for group in open_.values())
    return plans


def _plan(tensors: Sequence[Tensor], group: list[int], names: Sequence[str]) -> BucketPlan:
    slots, offset = [], 0
    # Stable: among matrices, and among vectors, the order of the backward pass stays.
    for index in sorted(group, key=lambda i: tensors[i].dim() < 2):
        slots.append(GradientSlot(index, offset, tensors[index].shape, names[index] if names else ""))
        offset += tensors[index].numel()
    first = tensors[group[0]]
    return BucketPlan(tuple(slots), offset, BucketSpace(offset + len(slots), first.dtype, first.device))


class GradientBucket:
    """A bucket's memory and its state during one exchange. Input and result may be in different memory."""

    def __init__(self, plan: BucketPlan, flat: Tensor, result: Tensor | None = None) -> None:
        self.plan = plan
        self.flat = flat
        # Workers of a host read each other's input, so the sum may have to lie elsewhere.
        self._apart = result is not None
        result = flat if result is None else result
        self.result = result
        self._leaving, self.views = _views(plan, flat), _views(plan, result)
        marks = slice(plan.payload, plan.payload + len(plan.slots))
        self._leaving_marks, self.marks = flat[marks], result[marks]
        self.filled = [False] * len(plan.slots)
        self.missing = len(plan.slots)
        self.raw = plan.payload * 4
        self._blank = [False] * len(plan.slots)

    def put(self, slot: int, gradient: Tensor, scale: float) -> Tensor:
        """Write `gradient * scale` into its place; returns where the result will be, which may become the gradient."""
        place = self._leaving[slot]
        if scale != 1.0:
            torch.mul(gradient, scale, out=place)
        # The gradient may be the view of the last exchange already: the script accumulates in place then.
        elif gradient is not place:
            place.copy_(gradient)
        if not self.filled[slot]:
            self.filled[slot] = True
            self.missing -= 1
        self._blank[slot] = False
        return self.views[slot]

    def add(self, slot: int, values: Tensor) -> None:
        """Add to what `put` has written, before the bucket leaves."""
        place = self._leaving[slot]
        place.add_(values.to(place.device, place.dtype))

    def seal(self, scale: float) -> None:
        """Complete the bucket before it leaves: zeros for missing gradients, and the marks."""
        if self.missing == 0:
            self._leaving_marks.fill_(scale)
            return
        for slot, filled in enumerate(self.filled):
            # The scale is this worker's share of the batch, so the sum of a mark is the share of all that had the
            # gradient.
            self._leaving_marks[slot] = scale if filled else 0.0
            if not filled and not self._blank[slot]:  # else zeros of an earlier step are there
                self._leaving[slot].zero_()
                self._blank[slot] = True

    def had(self, slot: int) -> float:
        """After the exchange: the share of workers that had this gradient."""
        # Its own gradient is known without reading the mark, which would wait for a device.
        return 1.0 if self.filled[slot] else float(self.marks[slot])

    def reset(self) -> None:
        """Ready for the next exchange; the memory keeps the result."""
        for slot, filled in enumerate(self.filled):
            if not filled and not self._apart:  # the result has taken the blank's place
                self._blank[slot] = self._blank[slot] and float(self.marks[slot]) == 0.0
            self.filled[slot] = False
        self.missing = len(self.filled)


def _views(plan: BucketPlan, flat: Tensor) -> list[Tensor]:
    return [flat[s.offset : s.offset + s.shape.numel()].view(s.shape) for s in plan.slots]
