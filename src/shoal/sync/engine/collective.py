"""Sums buckets by `torch.distributed` all-reduce: gloo between hosts, NCCL between CUDA devices.

Buckets start in the same order on every worker, overlap the backward pass on the process group's own threads, and are
waited for when the pass ends. These engines authenticate nobody and stay dead after a timeout: for trusted networks.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.core.errors import PeerLost
from shoal.sync.engine.base import Engine
from shoal.wire.bucket import Space


class CollectiveEngine(Engine):
    """Over a process group that is ours alone."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.process_group = process_group
        self._tensors: list[Tensor] = []
        self._works: dict[int, dist.Work] = {}

    def open(self, spaces: Sequence[Space]) -> list[tuple[Tensor, Tensor]]:
        self._tensors = [torch.zeros(s.numel, dtype=s.dtype, device=s.device) for s in spaces]
        return [(tensor, tensor) for tensor in self._tensors]

    def start(self, index: int) -> None:
        self._works[index] = self.process_group.allreduce([self._tensors[index]])

    def progress(self) -> None:
        pass

    def finish(self, index: int) -> None:
        try:
            self._works.pop(index).wait()
        except RuntimeError as error:
            reason = (str(error).splitlines() or ["no reason given"])[0][:120]
            raise PeerLost(
                f"the all-reduce of bucket {index} failed: {reason}; a worker or the network is gone"
            ) from None

    def wire(self, index: int) -> int:
        """By the ring's arithmetic, 2 (p-1)/p of the bucket: the library does not tell what it really sent."""
        tensor, size = self._tensors[index], self.process_group.size()
        return 2 * (size - 1) * tensor.numel() * tensor.element_size() // size
