"""Sums buckets over links, between hosts: under keys, in the background, and abortable in the middle.

How a bucket is summed depends on its size and dtype (see `sums/`): small ones straight to everybody (one latency;
between two workers nothing else is ever better), middle ones and half precision through the owners of parts (two
latencies), large ones round the ring. The communication thread
does it while the backward pass runs; several buckets are under way at a time. What leaves and what comes back are
different tensors and the first is only read, so that an exchange that a lost worker has ended can be repeated.
Payloads of codecs go straight from each worker to every other.
Do not use it inside one host: shared memory does the same without a socket.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.cluster.linked import LinkedGroup
from shoal.cluster.links.dealing import Dealing
from shoal.cluster.links.gathering import Gathering
from shoal.core.errors import UsageError
from shoal.sync.engine.base import Engine, Parcel
from shoal.sync.engine.sums.arithmetic import Arithmetic
from shoal.sync.engine.sums.base import Sum
from shoal.sync.engine.sums.owners import Owners
from shoal.sync.engine.sums.ring import Ring
from shoal.sync.engine.sums.straight import Straight
from shoal.sync.price import Network, merged
from shoal.wire.bucket import Space

SUMS = Sum.channel
EXTRA = 16 << 10
"""Bytes a worker may send more than it must, to save a latency: sent in a millisecond at 100 Mbit/s."""
MIDDLE = 1 << 20
"""Bytes that go through owners at the most, if they go round the ring at all."""


class RingEngine(Engine):
    """Over the links of a group; tensors on the CPU."""

    def __init__(self, group: LinkedGroup) -> None:
        self.group = group
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._under_way: dict[int, Sum] = {}
        self._parcels: Sequence[Parcel] = ()
        self._areas: list[Tensor] = []
        self._posted: dict[int, Gathering] = {}
        self._lengths: dict[int, int] = {}

    def open(self, spaces: Sequence[Space]) -> list[tuple[Tensor, Tensor]]:
        for space in spaces:
            if space.device.type != "cpu":
                raise UsageError(f"a bucket on {space.device} cannot travel over links; use --trusted for NCCL")
        self._pairs = [(torch.zeros(s.numel, dtype=s.dtype), torch.zeros(s.numel, dtype=s.dtype)) for s in spaces]
        self._arithmetic = [Arithmetic(space.dtype) for space in spaces]
        return self._pairs

    def start(self, index: int) -> None:
        leaving, result = self._pairs[index]
        arithmetic = self._arithmetic[index]
        task = way(leaving, self.group.mesh.view.size)(arithmetic.array(leaving), arithmetic.array(result), arithmetic)
        self._under_way[index] = task
        self.group.mesh.submit(task)

    def progress(self) -> None:
        pass

    def finish(self, index: int) -> None:
        self.group.mesh.wait(self._under_way.pop(index), self.group.seconds)

    def wire(self, index: int) -> int:
        leaving, size = self._pairs[index][0], self.group.mesh.view.size
        bytes_ = leaving.numel() * leaving.element_size()
        return (size - 1) * bytes_ if way(leaving, size) is Straight else 2 * (size - 1) * bytes_ // size

    def landed(self, index: int) -> bool:
        return self._under_way[index].done.is_set()

    def payload_landed(self, index: int) -> bool:
        return self._posted[index].done.is_set()

    def network(self) -> Network:
        mesh = self.group.mesh
        links = (mesh.link(rank).out.estimate for rank in mesh.view.others)
        return merged(Network(link.rate, link.rtt) for link in links)

    def open_payloads(self, parcels: Sequence[Parcel]) -> list[Tensor]:
        self._parcels = parcels
        self._areas = [torch.zeros(parcel.bound * parcel.pieces, dtype=torch.uint8) for parcel in parcels]
        return self._areas

    def post(self, index: int, length: int) -> None:
        parcel, area = self._parcels[index], self._areas[index].numpy()
        task: Gathering
        if parcel.pieces > 1:
            task = Dealing(area.reshape(parcel.pieces, -1)[:, :length].copy(), SUMS, parcel.bound)
        else:
            task = Gathering(area[:length].tobytes(), SUMS, parcel.bound)
        self._posted[index], self._lengths[index] = task, length
        self.group.mesh.submit(task)

    def collect(self, index: int) -> list[Tensor]:
        task = self._posted.pop(index)
        self.group.mesh.wait(task, self.group.seconds)
        return [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in task.result]

    def release(self, index: int) -> None:
        pass

    def payload_wire(self, index: int) -> int:
        return (self.group.mesh.view.size - 1) * self._lengths[index]


def way(leaving: Tensor, workers: int) -> type[Sum]:
    """How a tensor is summed: the same on all workers, so by what all know."""
    size = leaving.numel() * leaving.element_size()
    if size * (workers - 1) * (workers - 2) // workers <= EXTRA:
        return Straight
    return Owners if size <= MIDDLE or leaving.element_size() == 2 else Ring
