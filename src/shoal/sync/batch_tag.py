"""What every worker says of its batches in each exchange: four numbers that are summed along with the gradients.

    | skipped a batch? | number of batches since the last step, modulo 3, as one of three places |

Workers whose numbers differ train on different batches: one of them has skipped some (`if loss.isnan(): continue`).
Only whether a place of the sum is zero counts, so that any floating-point type and any number of workers will do.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.wire.bucket import BucketPlan, BucketSpace, GradientSlot

CLASSES = 3
SIZE = 1 + CLASSES


class BatchTag(NamedTuple):
    """Of one worker, at the beginning of a backward pass."""

    skipped: bool = False
    """Whether it was given a batch since the last step and ran no backward pass for it."""
    number: int = 0
    """Batches it was given since the last step."""

    @property
    def values(self) -> list[float]:
        return [float(self.skipped), *(float(self.number % CLASSES == place) for place in range(CLASSES))]

    def differs(self, total: Tensor) -> bool:
        """Whether any worker said something else, or has skipped a batch, by the sum of what all have said."""
        skipped, *places = total.tolist()
        return skipped > 0 or any(said > 0 for place, said in enumerate(places) if place != self.number % CLASSES)


def tag_plan(index: int, device: torch.device) -> BucketPlan:
    """A bucket of its own, for exchanges whose codecs take the others."""
    return with_tag(BucketPlan((), 0, BucketSpace(0, torch.float32, device)), index)


def with_tag(plan: BucketPlan, index: int) -> BucketPlan:
    """The same bucket with room for a tag behind its marks: it is no gradient, and not counted as one."""
    marks = plan.payload + len(plan.slots) + 1
    slots = (*plan.slots, GradientSlot(index, marks, torch.Size([SIZE])))
    return BucketPlan(slots, plan.payload, BucketSpace(marks + SIZE, plan.space.dtype, plan.space.device))
