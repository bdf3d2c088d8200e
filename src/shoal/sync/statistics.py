"""Running statistics: buffers a layer changes in its forward pass (BatchNorm's mean and variance, a codebook).

Policy: at every exchange, each persistent floating-point buffer that was changed becomes the mean over the workers
that changed it. Other buffers (masks, counters) are worker 0's at the start and each worker's own afterwards.
"""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from shoal.wire.bucket import Bucket


class Statistics:
    """The buffers of some models that are averaged along with gradients."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self.tensors: list[Tensor] = []
        self._owners: list[nn.Module] = []
        self._versions: list[int] = []
        seen: set[int] = set()
        for model in models:
            for module in model.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    kept = name not in module._non_persistent_buffers_set
                    if kept and buffer.is_floating_point() and id(buffer) not in seen:
                        seen.add(id(buffer))
                        self.tensors.append(buffer)
                        self._owners.append(module)
                        self._versions.append(buffer._version)

    def indices(self, first: int) -> list[int]:
        return list(range(first, first + len(self.tensors)))

    def offer(self, number: int, bucket: Bucket, slot: int, weight: float) -> None:
        """Put buffer `number` into its slot if the last forward pass changed it."""
        buffer, owner = self.tensors[number], self._owners[number]
        # native batch norm does not count its writes, so its mode decides
        changed = owner.training if isinstance(owner, _NormBase) else buffer._version != self._versions[number]
        if changed:
            bucket.put(slot, buffer, weight)

    def take(self, bucket: Bucket) -> None:
        """Write the means back into the buffers that anybody changed."""
        for slot, share in enumerate(bucket.marks.tolist()):
            if share > 0:
                number = bucket.plan.slots[slot].index
                self.tensors[number].copy_(bucket.views[slot] / share)
                self._versions[number] = self.tensors[number]._version
