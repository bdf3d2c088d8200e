"""Running statistics: buffers that a layer changes in its forward pass (BatchNorm's mean and variance, a codebook).

Policy: at every exchange, each persistent floating-point buffer that was changed becomes the mean over the workers
that changed it. Other buffers (masks, counters) are worker 0's at the start and each worker's own afterwards.

An exchange may happen while a forward pass still waits for its backward pass (a GAN's generator while its critic
learns), and autograd refuses a graph whose tensors were written since. So means are written where no graph sees it:

    no graph holds the buffer      in place
    BatchNorm in training          in place, without counting the write: its backward pass does not read them
    any other layer                as a new tensor; the graph keeps the one it has seen
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from shoal.wire.bucket import GradientBucket


class RunningStatistics:
    """The buffers of some models that are averaged with the gradients."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self.tensors: list[Tensor] = []
        """As last seen: a layer may replace a buffer by a new tensor."""
        self._owners: list[list[tuple[nn.Module, str]]] = []
        """Of each buffer: the modules that have it, and its name there."""
        self._versions: list[int] = []
        seen: dict[int, int] = {}
        for model in models:
            for module in model.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    kept = name not in module._non_persistent_buffers_set
                    if not kept or not buffer.is_floating_point():
                        continue
                    # a buffer that several modules share travels once
                    if id(buffer) in seen:
                        self._owners[seen[id(buffer)]].append((module, name))
                        continue
                    seen[id(buffer)] = len(self.tensors)
                    self.tensors.append(buffer)
                    self._owners.append([(module, name)])
                    self._versions.append(buffer._version)

    def indices(self, first: int) -> list[int]:
        return list(range(first, first + len(self.tensors)))

    def offer(self, number: int, bucket: GradientBucket, slot: int, weight: float) -> None:
        """Put buffer `number` into its slot if a forward pass since the last exchange changed it."""
        if self._changed(number):
            bucket.put(slot, self.tensors[number].detach(), weight)

    def _changed(self, number: int) -> bool:
        module, name = self._owners[number][0]
        buffer, before = getattr(module, name), self.tensors[number]
        if buffer is not before and isinstance(buffer, Tensor) and buffer.shape == before.shape:
            self.tensors[number] = buffer
            return True
        # native batch norm does not count its writes, so its mode decides
        return module.training if isinstance(module, _NormBase) else buffer._version != self._versions[number]

    def take(self, bucket: GradientBucket) -> None:
        """Write the means back into the buffers that anybody changed."""
        for slot, share in enumerate(bucket.marks.tolist()):
            if share > 0:
                number = bucket.plan.slots[slot].index
                with torch.no_grad():
                    self._write(number, bucket.views[slot] / share)
                # what is written here is no change of the layer's own
                self._versions[number] = self.tensors[number]._version

    def _write(self, number: int, mean: Tensor) -> None:
        buffer, owners = self.tensors[number], self._owners[number]
        if buffer._use_count() <= 1:  # type: ignore[attr-defined]  # only Python holds it, and no graph
            buffer.copy_(mean)
        elif all(isinstance(module, _NormBase) and module.training for module, _ in owners):
            buffer.data.copy_(mean)
        else:
            self.tensors[number] = new = torch.empty_like(buffer).copy_(mean)
            for module, name in owners:
                setattr(module, name, new)
