"""Sums buckets by `torch.distributed` all-reduce: gloo between hosts, NCCL between CUDA devices.

Buckets start in the same order on every worker, overlap the backward pass on the process group's own threads, and are
waited for when the pass ends. These engines authenticate nobody and stay dead after a timeout: for trusted networks.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.core.errors import PayloadError, PeerLost
from shoal.sync.engine.base import ExchangeEngine, PayloadSpec
from shoal.wire.bucket import BucketSpace


class CollectiveEngine(ExchangeEngine):
    """Over a process group that is ours alone."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self.process_group = process_group
        self._tensors: list[Tensor] = []
        self._works: dict[int, dist.Work] = {}

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        self._tensors = [torch.zeros(s.numel, dtype=s.dtype, device=s.device) for s in spaces]
        return [(tensor, tensor) for tensor in self._tensors]

    def open_payloads(self, parcels: Sequence[PayloadSpec]) -> list[Tensor]:
        self._post = CollectivePayloads(self.process_group, parcels)
        return self._post.areas

    def post(self, index: int, length: int) -> None:
        self._post.post(index, length)

    def collect(self, index: int) -> list[Tensor]:
        try:
            return self._post.collect(index)
        except RuntimeError as error:
            raise PeerLost(_lost("all-gather of payload", index, error)) from None

    def release(self, index: int) -> None:
        pass

    def payload_wire(self, index: int) -> int:
        return self._post.wire[index]

    def start(self, index: int) -> None:
        self._works[index] = self.process_group.allreduce([self._tensors[index]])

    def progress(self) -> None:
        pass

    def finish(self, index: int) -> None:
        try:
            self._works.pop(index).wait()
        except RuntimeError as error:
            raise PeerLost(_lost("all-reduce of bucket", index, error)) from None

    def landed(self, index: int) -> bool:
        return self._works[index].is_completed()

    def payload_landed(self, index: int) -> bool:
        return self._post.landed(index)

    def wire(self, index: int) -> int:
        """By the ring's arithmetic, 2 (p-1)/p of the bucket: the library does not tell what it really sent."""
        tensor, size = self._tensors[index], self.process_group.size()
        return 2 * (size - 1) * tensor.numel() * tensor.element_size() // size


class CollectivePayloads:
    """Payloads by all-gather, padded to the largest: one round if all are equally long, else lengths travel first.

    Those in pieces by all-to-all. The second round of every payload starts when the first is collected: the order is
    the same on all workers.
    """

    def __init__(self, process_group: dist.ProcessGroup, parcels: Sequence[PayloadSpec]) -> None:
        self.process_group, self.parcels = process_group, parcels
        size, room = process_group.size(), [_padded(parcel.bound) for parcel in parcels]
        self._own = [torch.zeros(m * parcel.pieces, dtype=torch.uint8) for m, parcel in zip(room, parcels, strict=True)]
        self._all = [[torch.zeros(most, dtype=torch.uint8) for _ in range(size)] for most in room]
        self._lengths = [[torch.zeros(1, dtype=torch.int64) for _ in range(size)] for _ in parcels]
        self._works: dict[int, dist.Work] = {}
        self._waiting: dict[int, dist.Work] = {}
        self._leaving: dict[int, Tensor] = {}
        self.areas = [own[: parcel.bound * parcel.pieces] for own, parcel in zip(self._own, parcels, strict=True)]
        self.wire = [0] * len(parcels)

    def post(self, index: int, length: int) -> None:
        if self.parcels[index].exact:
            self._works[index] = self._send(index, self.parcels[index].bound)
        else:
            self._waiting[index] = self.process_group.allgather(
                [self._lengths[index]], [torch.tensor([length], dtype=torch.int64)]
            )

    def _send(self, index: int, most: int) -> dist.Work:
        most = _padded(most)
        self.wire[index] = (self.process_group.size() - 1) * (most + (0 if self.parcels[index].exact else 8))
        if self.parcels[index].pieces > 1:
            return self._deal(index, most)
        return self.process_group.allgather([[t[:most] for t in self._all[index]]], [self._own[index][:most]])

    def _deal(self, index: int, most: int) -> dist.Work:
        """To everybody its piece, all as long as the longest."""
        size = self.process_group.size()
        out = torch.zeros(size, most, dtype=torch.uint8)
        self._all[index] = list(out)
        # kept until it has left; a copy only where pieces are shorter than they may be
        self._leaving[index] = self._own[index].view(size, -1)[:, :most].contiguous()
        return self.process_group.alltoall_base(out.view(-1), self._leaving[index].view(-1), [], [])

    def landed(self, index: int) -> bool:
        """Of a payload whose length had to travel first, not before it is collected."""
        return index in self._works and self._works[index].is_completed()

    def collect(self, index: int) -> list[Tensor]:
        for waiting, work in self._waiting.items():
            work.wait()
            lengths = [int(length) for length in self._lengths[waiting]]
            if not all(0 <= length <= self.parcels[waiting].bound for length in lengths):
                raise PayloadError(
                    f"payload {waiting} has {lengths} bytes by rank; at most {self.parcels[waiting].bound} are "
                    "possible, so all workers must run the same plan and model"
                )
            self._works[waiting] = self._send(waiting, max(lengths))
        self._waiting.clear()
        self._works.pop(index).wait()
        parcel = self.parcels[index]
        lengths = [parcel.bound if parcel.exact else int(length) for length in self._lengths[index]]
        return [tensor[:length] for tensor, length in zip(self._all[index], lengths, strict=True)]


def _padded(size: int) -> int:
    return -(-max(size, 1) // 64) * 64


def _lost(what: str, index: int, error: RuntimeError) -> str:
    reason = (str(error).splitlines() or ["no reason given"])[0][:120]
    return f"the {what} {index} failed: {reason}; a worker or the network is gone"
