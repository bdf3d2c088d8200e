"""Sums buckets over links, between hosts: under keys, in the background, and abortable in the middle.

How a bucket is summed depends on its size and dtype (see `sums/`): small ones straight to everybody (one latency;
between two workers nothing else is ever better), middle ones and half precision through the owners of parts (two
latencies), large ones round the ring. The communication thread does it while the backward pass runs; several
buckets are under way at a time. What leaves and what comes back are different tensors and the first is only read, so
that an exchange that a lost worker has ended can be repeated: what was begun is begun again, in the same order.
Payloads of codecs go straight from each worker to every other.
Do not use it inside one host: shared memory does the same without a socket.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.core.errors import PayloadError, UsageError
from shoal.groups.links import LinkedGroup
from shoal.membership.listener import ListenerStage, MembershipListener
from shoal.membership.view import MembershipView
from shoal.sync.engine.algorithms.base import DtypeArithmetic, SumTask
from shoal.sync.engine.algorithms.direct import DirectSum
from shoal.sync.engine.algorithms.reduce_scatter_gather import ReduceScatterGather
from shoal.sync.engine.algorithms.ring import RingAllReduce
from shoal.sync.engine.algorithms.tuner import NOTHING, AlgorithmTuner
from shoal.sync.engine.base import ExchangeEngine, PayloadSpec
from shoal.sync.price import NetworkEstimate, merged
from shoal.transport.collectives import AllGather, AllToAll
from shoal.transport.tasks import CollectiveTask
from shoal.wire.bucket import BucketSpace

EXTRA = 16 << 10
"""Bytes a worker may send more than it must, to save a latency: sent in a millisecond at 100 Mbit/s."""
MIDDLE = 1 << 20
"""Bytes that go through owners at the most, if they go round the ring at all."""


MUCH = 4 << 20
"""Bytes of all buckets beyond which latencies do not count: the ring is taken for what is large, and nothing tried."""


class LinkEngine(ExchangeEngine, MembershipListener):
    """Over the links of a group; tensors on the CPU."""

    repeatable = True

    def __init__(self, group: LinkedGroup, among: Sequence[int] | None = None, by: str = "auto") -> None:
        """`among`: only these ranks take part; None: the whole view. `by`: one of WAYS for all buckets."""
        self.group, self.channel, self.among, self.by = group, group.new_channel(), among, by
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._parcels: Sequence[PayloadSpec] = ()
        self._areas: list[Tensor] = []
        self._lengths: dict[int, int] = {}
        self._begun: dict[int, tuple[Callable[[], CollectiveTask], CollectiveTask]] = {}
        """Tasks of the exchange under way, in order, and how each is made again."""
        self._urgencies: Sequence[int] = ()
        self._round = 0
        self._landed: dict[int, float] = {}
        self._started = 0.0
        self._tuning: AlgorithmTuner | None = None

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        for space in spaces:
            if space.device.type != "cpu":
                raise UsageError(f"a bucket on {space.device} cannot travel over links; use --trusted for NCCL")
        self._pairs = [(torch.zeros(s.numel, dtype=s.dtype), torch.zeros(s.numel, dtype=s.dtype)) for s in spaces]
        self._arithmetic = [DtypeArithmetic(space.dtype) for space in spaces]
        self._tune()
        return self._pairs

    def _tune(self) -> None:
        """Try two ways for the buckets that may go either, where all hear what each found (see `sums/tuning.py`)."""
        sizes = [_bytes(leaving) for leaving, _ in self._pairs if leaving.element_size() > 2]
        if self.by != "auto" or not 0 < sum(sizes) <= MUCH or not self.group.session.elastic:
            return
        self._tuning = AlgorithmTuner(("auto", "ring" if max(sizes) <= MIDDLE else "owners"))
        self.group.session.listeners.add(self, ListenerStage.exchange)
        self.group.confirmation_listeners.append(self)

    def on_view_change(self, view: MembershipView, newcomers: Sequence[str]) -> None:
        assert self._tuning is not None
        self._tuning.begin()
        self._started = 0.0

    def word(self) -> float:
        """How long the exchange that has just been took, after the last bucket had left; once for each exchange."""
        started, self._started = self._started, 0.0
        ended = [task.ended or now() for _, task in self._begun.values()]  # all hold their results, says the caller
        return max(ended, default=0.0) - started if started else NOTHING

    def heard(self, words: Sequence[float | None]) -> None:
        assert self._tuning is not None
        seats = self.group.mesh.view.ranks
        self._tuning.heard([w for seat, w in zip(seats, words, strict=True) if not self.among or seat in self.among])

    def prepare(self) -> None:
        self._round += 1
        self._begun.clear()
        self._landed.clear()
        if self._tuning is not None:
            self._tuning.next()

    def start(self, index: int) -> None:
        self._started = now()
        self._begin(index, lambda: self._sum(index))

    def _begin(self, index: int, make: Callable[[], CollectiveTask]) -> None:
        task = make()
        task.channel, task.among = self.channel, self.among
        task.urgency = self._urgency(index)
        self._begun.pop(index, None)  # so that it is the last
        self._begun[index] = (make, task)
        self.group.mesh.submit(task)

    def _urgency(self, index: int) -> int:
        """What is left of one exchange goes before all of the next, which a peer cannot begin without it."""
        urgency = self._urgencies[index] if self._urgencies else 0
        return self._round * len(self._urgencies) + urgency if urgency else 0

    def _sum(self, index: int) -> CollectiveTask:
        leaving, result = self._pairs[index]
        arithmetic = self._arithmetic[index]
        kind = way(leaving, self._size, self.by)
        if self._tuning is not None and kind is not DirectSum and leaving.element_size() > 2:
            kind = way(leaving, self._size, self._tuning.way)
        return kind(arithmetic.array(leaving), arithmetic.array(result), arithmetic)

    def hurry(self, urgencies: Sequence[int]) -> None:
        self._urgencies = urgencies

    @property
    def _size(self) -> int:
        return self.group.mesh.view.size if self.among is None else len(self.among)

    def arrival(self, index: int) -> float | None:
        return self._landed.get(index)

    def _wait(self, index: int) -> CollectiveTask:
        task = self._begun[index][1]
        self.group.mesh.wait(task, self.group.seconds)
        self._landed[index] = task.ended or now()
        return task

    def progress(self) -> None:
        pass

    def finish(self, index: int) -> None:
        self._wait(index)

    def whole(self) -> bool:
        return all(self.holds(index) for index in list(self._begun))

    def holds(self, index: int) -> bool:
        """Whether it has come, and nothing went wrong."""
        begun = self._begun.get(index)
        return begun is not None and begun[1].done.is_set() and begun[1].error is None

    def repeat(self) -> None:
        begun, self._begun = self._begun, {}
        for index, (make, _) in begun.items():
            self._begin(index, make)

    def recover(self) -> None:
        pass  # every result is here already

    def forget(self) -> None:
        self._begun.clear()

    def wire(self, index: int) -> int:
        leaving, size = self._pairs[index][0], self._size
        bytes_ = _bytes(leaving)
        return (size - 1) * bytes_ if way(leaving, size, self.by) is DirectSum else 2 * (size - 1) * bytes_ // size

    def landed(self, index: int) -> bool:
        begun = self._begun.get(index)  # steps overlap: what a meter has seen leave may belong to the one before
        return begun is not None and begun[1].done.is_set()

    def payload_landed(self, index: int) -> bool:
        return self.landed(index)

    def network(self) -> NetworkEstimate:
        mesh = self.group.mesh
        links = (mesh.link(rank).out.estimate for rank in mesh.view.others)
        return merged(NetworkEstimate(link.rate, link.rtt) for link in links)

    def open_payloads(self, parcels: Sequence[PayloadSpec]) -> list[Tensor]:
        self._parcels = parcels
        self._areas = [torch.zeros(parcel.area, dtype=torch.uint8) for parcel in parcels]
        return self._areas

    def post(self, index: int, length: int) -> None:
        parcel, area = self._parcels[index], self._areas[index].numpy()
        self._lengths[index] = length
        if parcel.pieces > 1:
            pieces = area.reshape(parcel.pieces, -1)[:, :length].copy()
            self._begin(index, lambda: AllToAll(pieces, parcel.bound))
        else:
            payload = bytearray(area[:length])  # not bytes: tensors are made of what can be written only
            self._begin(index, lambda: AllGather(payload, parcel.bound))

    def await_payload(self, index: int) -> None:
        self._wait(index)

    def collect(self, index: int) -> list[Tensor]:
        task = self._wait(index)
        assert isinstance(task, AllGather)
        return [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in task.buffers]

    def distrust(self, rank: int, error: PayloadError) -> None:
        self.group.session.distrust(self.group.session.view.members[rank], error)

    def release(self, index: int) -> None:
        pass

    def payload_wire(self, index: int) -> int:
        return (self.group.mesh.view.size - 1) * self._lengths[index]


WAYS: dict[str, type[SumTask]] = {"ring": RingAllReduce, "owners": ReduceScatterGather, "straight": DirectSum}


def way(leaving: Tensor, workers: int, by: str = "auto") -> type[SumTask]:
    """How a tensor is summed: the same on all workers, so by what all know."""
    size = _bytes(leaving)
    if by != "auto":
        return ReduceScatterGather if WAYS[by] is RingAllReduce and leaving.element_size() == 2 else WAYS[by]
    if size * (workers - 1) * (workers - 2) // workers <= EXTRA:
        return DirectSum
    return ReduceScatterGather if size <= MIDDLE or leaving.element_size() == 2 else RingAllReduce


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
