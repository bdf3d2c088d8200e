"""Which parameters, statistics and tags lie in which bucket of a part.

    trained parameters | frozen parameters | running statistics | tag

Frozen parameters have buckets of their own, which travel only once they are trained. The tag lies at the end of a
bucket of gradients; where codecs take those, in a bucket of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.sync.batch_tag import tag_plan, with_tag
from shoal.sync.synchronizer import Part
from shoal.wire.bucket import BucketPlan, lay_out


@dataclass
class BucketLayout:
    """Of a part: parameters have the indices 0, 1, …, then come statistics, then the tag."""

    plans: list[BucketPlan]
    indices: list[list[int]]
    """Of each bucket, what lies in its slots."""
    tag_at: tuple[int, int, int] = (-1, 0, 0)
    """Bucket, slot, and offset in the slot."""

    @property
    def places(self) -> dict[int, tuple[int, int]]:
        """Index -> bucket and slot."""
        return {i: (bucket, slot) for bucket, group in enumerate(self.indices) for slot, i in enumerate(group)}


def lay_out_part(part: Part, capacity: int, part_of: Callable[[str], int] = lambda name: 0) -> BucketLayout:
    """Buckets of at most `capacity` bytes, without a tag; `part_of`: which names may not share one."""
    dense = [i for i in range(len(part.parameters)) if i not in {*part.sparse, *part.served}]
    trained = [i for i in dense if part.parameters[i].requires_grad]
    frozen = [i for i in dense if not part.parameters[i].requires_grad]
    statistics = part.statistics.indices(len(part.parameters))
    tensors: Sequence[Tensor] = [*part.parameters, *part.statistics.tensors]
    layout = BucketLayout([], [])
    for group in (trained, frozen, statistics):
        named = [part.names[i] for i in group] if group is not statistics else []
        for plan in lay_out([tensors[i] for i in group], capacity, named, [part_of(name) for name in named]):
            layout.plans.append(plan)
            layout.indices.append([group[slot.index] for slot in plan.slots])
    return layout


def add_tag(layout: BucketLayout, part: Part, own_bucket: bool) -> None:
    """Make room for the tag."""
    index = len(part.parameters) + len(part.statistics.tensors)
    trained = [n for n, group in enumerate(layout.indices) if group[0] < len(part.parameters)]
    host = next((n for n in trained if layout.plans[n].space.dtype.is_floating_point), None)
    if own_bucket or host is None:
        layout.plans.append(tag_plan(0, device_of(part)))
        layout.indices.append([index])
        layout.tag_at = (len(layout.plans) - 1, 0, 0)
    else:
        layout.plans[host] = with_tag(layout.plans[host], len(layout.plans[host].slots))
        layout.indices[host].append(index)
        layout.tag_at = (host, len(layout.indices[host]) - 1, 0)


def device_of(part: Part) -> torch.device:
    """Where a part's own numbers lie."""
    return part.parameters[0].device if part.parameters else torch.device("cpu")
