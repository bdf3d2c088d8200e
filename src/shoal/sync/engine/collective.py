"""Sums and payloads by the collectives of `torch.distributed`: gloo between hosts, NCCL between CUDA devices.

Collectives start in the same order on every worker and overlap the backward pass on the process group's own threads.
These engines authenticate nobody and stay dead after a timeout: for trusted networks.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.core.errors import PayloadError, PeerLost
from shoal.sync.engine.base import AllReduceEngine, PayloadEngine, PayloadSpec
from shoal.wire.bucket import BucketSpace


class CollectiveEngine(AllReduceEngine):
    """All-reduces over a process group that is ours alone."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.process_group = process_group
        self._tensors: list[Tensor] = []
        self._works: dict[int, dist.Work] = {}

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        # summed in place: these engines cannot retry, so nothing has to stay as it left
        self._tensors = [torch.zeros(s.numel, dtype=s.dtype, device=s.device) for s in spaces]
        return [(tensor, tensor) for tensor in self._tensors]

    def start(self, index: int) -> None:
        self._works[index] = self.process_group.allreduce([self._tensors[index]])

    def finish(self, index: int) -> None:
        try:
            self._works.pop(index).wait()
        # torch.distributed raises this for a lost peer as for one that is late
        except RuntimeError as error:
            raise PeerLost(_lost("all-reduce of bucket", index, error)) from None

    def is_done(self, index: int) -> bool:
        return self._works[index].is_completed()

    def wire_bytes(self, index: int) -> int:
        """By the ring's arithmetic, 2 (p-1)/p of the tensor: the library does not tell what it really sent."""
        tensor, size = self._tensors[index], self.process_group.size()
        return 2 * (size - 1) * tensor.numel() * tensor.element_size() // size


class CollectivePayloads(PayloadEngine):
    """All-gathers, padded to the longest payload; payloads in pieces by all-to-all.

    Payloads of one length take one round; else lengths travel first, and the second round of every payload starts when
    the first payload is collected: in the same order on all workers.
    """

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.process_group = process_group

    def open(self, specs: Sequence[PayloadSpec]) -> list[Tensor]:
        self._specs = specs
        size, room = self.process_group.size(), [_padded(spec.bound) for spec in specs]
        self._own = [torch.zeros(m * spec.pieces, dtype=torch.uint8) for m, spec in zip(room, specs, strict=True)]
        self._all = [[torch.zeros(most, dtype=torch.uint8) for _ in range(size)] for most in room]
        self._lengths = [[torch.zeros(1, dtype=torch.int64) for _ in range(size)] for _ in specs]
        self._works: dict[int, dist.Work] = {}
        self._lengths_under_way: dict[int, dist.Work] = {}
        self._leaving: dict[int, Tensor] = {}
        self._wire = [0] * len(specs)
        return [own[: spec.bound * spec.pieces] for own, spec in zip(self._own, specs, strict=True)]

    def post(self, index: int, length: int) -> None:
        if self._specs[index].exact:
            self._works[index] = self._send(index, self._specs[index].bound)
        else:
            self._lengths_under_way[index] = self.process_group.allgather(
                [self._lengths[index]], [torch.tensor([length], dtype=torch.int64)]
            )

    def _send(self, index: int, most: int) -> dist.Work:
        most = _padded(most)
        # 8: the length that travels first
        self._wire[index] = (self.process_group.size() - 1) * (most + (0 if self._specs[index].exact else 8))
        if self._specs[index].pieces > 1:
            return self._send_pieces(index, most)
        return self.process_group.allgather([[t[:most] for t in self._all[index]]], [self._own[index][:most]])

    def _send_pieces(self, index: int, most: int) -> dist.Work:
        """Send each worker its piece, all as long as the longest."""
        size = self.process_group.size()
        out = torch.zeros(size, most, dtype=torch.uint8)
        self._all[index] = list(out)
        # kept until it has left; a copy only where pieces are shorter than they may be
        self._leaving[index] = self._own[index].view(size, -1)[:, :most].contiguous()
        return self.process_group.alltoall_base(out.view(-1), self._leaving[index].view(-1), [], [])

    def is_done(self, index: int) -> bool:
        # a payload whose length travels first is not sent before the first payload is collected
        return index in self._works and self._works[index].is_completed()

    def collect(self, index: int) -> list[Tensor]:
        try:
            return self._collect(index)
        except RuntimeError as error:
            raise PeerLost(_lost("all-gather of payload", index, error)) from None

    def _collect(self, index: int) -> list[Tensor]:
        self._send_those_with_lengths()
        self._works.pop(index).wait()
        spec = self._specs[index]
        lengths = [spec.bound if spec.exact else int(length) for length in self._lengths[index]]
        return [tensor[:length] for tensor, length in zip(self._all[index], lengths, strict=True)]

    def _send_those_with_lengths(self) -> None:
        """Start the second round of all payloads whose lengths are under way."""
        for index, work in self._lengths_under_way.items():
            work.wait()
            lengths, bound = [int(length) for length in self._lengths[index]], self._specs[index].bound
            if not all(0 <= length <= bound for length in lengths):
                raise PayloadError(
                    f"payload {index} has {lengths} bytes by rank; at most {bound} are possible, so all workers must "
                    "run the same plan and model"
                )
            self._works[index] = self._send(index, max(lengths))
        self._lengths_under_way.clear()

    def wire_bytes(self, index: int) -> int:
        return self._wire[index]


def _padded(size: int) -> int:
    return -(-max(size, 1) // 64) * 64


def _lost(what: str, index: int, error: RuntimeError) -> str:
    reason = (str(error).splitlines() or ["no reason given"])[0][:120]
    return f"the {what} {index} failed: {reason}; a worker or the network is gone"
