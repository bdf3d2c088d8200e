"""Payloads over links: each worker's goes directly to every other, under keys and in the background.

Do not use it inside one host: shared memory does the same without a socket.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.groups.links import LinkedGroup
from shoal.sync.engine.base import PayloadEngine, PayloadSpec
from shoal.sync.engine.link_tasks import LinkTasks
from shoal.transport.collectives import AllGather, AllToAll


class LinkPayloads(LinkTasks, PayloadEngine):
    """Between all members of the view, also where hosts have several workers."""

    def __init__(self, group: LinkedGroup) -> None:
        super().__init__(group)
        self._specs: Sequence[PayloadSpec] = ()
        self._areas: list[Tensor] = []
        self._lengths: dict[int, int] = {}

    def open(self, specs: Sequence[PayloadSpec]) -> list[Tensor]:
        self._specs = specs
        self._areas = [torch.zeros(spec.area, dtype=torch.uint8) for spec in specs]
        return self._areas

    def post(self, index: int, length: int) -> None:
        spec, area = self._specs[index], self._areas[index].numpy()
        self._lengths[index] = length
        # copies: the communication thread reads them after this worker has begun to write the area again
        if spec.pieces > 1:
            pieces = area.reshape(spec.pieces, -1)[:, :length].copy()
            self._submit(index, lambda: AllToAll(pieces, spec.bound))
        else:
            payload = bytearray(area[:length])  # not bytes: torch.frombuffer wants what can be written
            self._submit(index, lambda: AllGather(payload, spec.bound))

    def await_payloads(self, index: int) -> None:
        self._wait(index)

    def collect(self, index: int) -> list[Tensor]:
        task = self._wait(index)
        assert isinstance(task, AllGather)
        return [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in task.buffers]

    def reject(self, rank: int, error: PayloadError) -> None:
        self.group.session.distrust(self.group.session.view.members[rank], error)

    def wire_bytes(self, index: int) -> int:
        return (self.group.mesh.view.size - 1) * self._lengths[index]
