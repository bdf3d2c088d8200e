"""Sums tensors at server processes: each tensor is cut evenly, and server j adds up slice j of all workers.

    worker ── slice j ──> server j ── sum of slice j, in the order of members ──> all workers

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012 (Sandblaster's synchronous scheme); Li et al., "Scaling
Distributed Machine Learning with the Parameter Server", OSDI 2014. What leaves stays as it was, so an exchange that a
lost worker ended is repeated among the others. A worker completes an exchange only when all hold all of its sums:
between hosts the session's members confirm that to each other, on one host they show it by a flag in shared memory. Do
not use it on one host for speed: shared memory does the same without a server. Where hosts have several workers, each
host's first one speaks for it (`hierarchical.py`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import PayloadError, UsageError, ViewEnded
from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.membership.session import slot_of
from shoal.sync.engine.base import AllReduceEngine, LeaderSumEngine
from shoal.sync.engine.hierarchical import HierarchicalEngine
from shoal.sync.engine.slot_flags import SlotFlags, flag_bytes, flag_rows
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.messages import SumReply, SumRequest, TensorSize
from shoal.sync.server.sum_rounds import DTYPES
from shoal.wire.bucket import BucketSpace

HELD = 0
"""The one item of the flags: this worker holds all sums of the exchange."""


class ServerEngines:
    """Makes an engine for every exchange of a worker whose sums are made by servers."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection

    def make_engine(self, group: WorkerGroup) -> AllReduceEngine:
        if isinstance(group, SharedGroup):
            return SharedServerEngine(group, self.connection)
        server = ServerEngine(group, self.connection)
        if isinstance(group, LinkedGroup) and group.local is not None:
            return HierarchicalEngine(group, between=server)
        return server


class ServerEngine(LeaderSumEngine):
    """For workers of several hosts; tensors on the CPU."""

    retryable = True

    def __init__(self, group: WorkerGroup, servers: ServerConnection) -> None:
        self.group, self.servers, self.channel = group, servers, servers.take_channel()
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._numbers: list[int] = []
        self._generation = -1
        self.among: Sequence[int] | None = None
        """Slots of the workers that take part; None: all."""
        self._queue: dict[int, list[tuple[int, int, slice]]] = {}
        """Tensor -> its requests: server, number, where its sum goes."""

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        for space in spaces:
            if space.device.type != "cpu" or str(space.dtype).removeprefix("torch.") not in DTYPES:
                raise UsageError(f"a bucket of {space.dtype} on {space.device} cannot go to servers; write allreduce")
        self._pairs = [(self._allocate(space), self._allocate(space)) for space in spaces]
        self._declare()
        return self._pairs

    def _allocate(self, space: BucketSpace) -> Tensor:
        return torch.from_numpy(self.servers.allocate(space.numel * space.dtype.itemsize)).view(space.dtype)

    def _declare(self) -> None:
        sizes: list[list[TensorSize]] = [[] for _ in range(len(self.servers))]
        for leaving, _ in self._pairs:
            dtype = str(leaving.dtype).removeprefix("torch.")
            for server, cut in enumerate(_cuts(leaving.numel(), len(self.servers))):
                sizes[server].append(TensorSize(dtype, (cut.stop - cut.start) * leaving.element_size()))
        self.servers.declare(self.channel, sizes)

    def prepare(self) -> None:
        self._forget()

    def _forget(self) -> None:
        for requests in self._queue.values():
            for _, number, _ in requests:
                self.servers.forget(number)
        self._queue = {}

    def start(self, index: int) -> None:
        view = self.group.session.view
        # from 0 in every view, so that newcomers number their sums as all others do
        if view.generation != self._generation:
            self._generation, self._numbers = view.generation, [0] * len(self._pairs)
        self._numbers[index] += 1
        leaving, arriving = self._pairs[index]
        key = (view.generation, self.channel, index, self._numbers[index])
        members = [m for m in view.members if self.among is None or slot_of(m) in self.among]
        request = SumRequest(*key, members, str(leaving.dtype).removeprefix("torch."))
        self._queue[index] = [
            (server, self.servers.send(server, request, [_bytes(leaving[cut])], _bytes(arriving[cut])), cut)
            for server, cut in enumerate(_cuts(leaving.numel(), len(self.servers)))
            if cut.start < cut.stop
        ]

    def progress(self) -> None:
        for server in range(len(self.servers)):
            self.servers.poll(server)

    def finish(self, index: int) -> None:
        self._take(index)

    def _take(self, index: int) -> None:
        result = self._pairs[index][1]
        for server, number, cut in self._queue[index]:
            reply, arrays = self.servers.wait(server, number, self._look)
            wanted = (cut.stop - cut.start) * result.element_size()
            if not isinstance(reply, SumReply) or len(arrays) != 1 or memoryview(arrays[0]).nbytes != wanted:
                raise PayloadError(f"server {server} answers a sum of {wanted} bytes with {type(reply).__name__}")
            found = np.frombuffer(arrays[0], np.uint8)
            if found.ctypes.data != result[cut].data_ptr():  # it came with the message
                _bytes(result[cut])[:] = found
        self._queue[index] = []

    def _look(self) -> None:
        if self.group.session.disturbed:
            raise ViewEnded("the members change")

    def is_done(self, index: int) -> bool:
        return self.has_result(index)

    def has_result(self, index: int) -> bool:
        """Whether the sum has come, or has been taken already."""
        return index in self._queue and all(self.servers.is_here(number) for _, number, _ in self._queue[index])

    def wire_bytes(self, index: int) -> int:
        """All of the tensor goes to the servers."""
        leaving = self._pairs[index][0]
        return leaving.numel() * leaving.element_size()

    def is_complete(self) -> bool:
        return all(self.is_done(index) for index in list(self._queue))

    def retry(self) -> None:
        started = list(self._queue)
        self._forget()
        for index in started:
            self.start(index)

    def finish_locally(self) -> None:
        for index in list(self._queue):
            self._take(index)  # all is here already, so this does not wait

    def abandon(self) -> None:
        self._forget()


class SharedServerEngine(ServerEngine):
    """For workers of one host."""

    def __init__(self, group: SharedGroup, servers: ServerConnection) -> None:
        super().__init__(group, servers)
        self._shared = group
        self._flags = SlotFlags(group)
        self._held = False

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        pairs, slots = super().open(spaces), self._shared.slots
        self._flags.open(*flag_rows(self._shared.region(flag_bytes(2, 1, slots)), 2, 1, slots))
        return pairs

    def prepare(self) -> None:
        self._flags.prepare()
        super().prepare()

    def _forget(self) -> None:
        super()._forget()
        self._held = False

    def finish(self, index: int) -> None:
        if not self._held:
            # all sums before the flag, which says that this worker holds the whole exchange
            for each in list(self._queue):
                self._take(each)
            self._flags.start(HELD)
            self._held = True
        self._flags.await_full(HELD)
        self._flags.mark_read(HELD)

    def is_complete(self) -> bool:
        return self._held and self._flags.is_complete()

    def retry(self) -> None:
        # `abandon` and not `retry` of the flags: this worker does not hold what it asks for anew
        self._flags.abandon()
        super().retry()

    def abandon(self) -> None:
        super().abandon()
        self._flags.abandon()


def _bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    return tensor.view(torch.uint8).numpy()


def _cuts(numel: int, parts: int) -> list[slice]:
    return [slice(numel * part // parts, numel * (part + 1) // parts) for part in range(parts)]
