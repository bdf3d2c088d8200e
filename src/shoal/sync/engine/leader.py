"""Sums go between machines by one worker of each, payloads between all: the part of a worker alone on its machine.

    machine a: worker 0 ──┐
    machine b: worker 1 ──┼── sums, among the first of each machine (links, sums/)
    machine c: workers 2 ─┘ and 3, who add up in memory first (hosts.py)

Who speaks for a machine is asked when an exchange begins, for members may have changed. Payloads of codecs go straight
from every worker to every other, as without it. Do not use it where no machine can have several workers: `ring.py`
does the same.
"""

from collections.abc import Sequence

from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.groups.links import LinkedGroup
from shoal.sync.engine.base import ExchangeEngine, PayloadSpec
from shoal.sync.engine.links import LinkEngine
from shoal.sync.price import NetworkEstimate
from shoal.wire.bucket import BucketSpace


class LeaderEngine(ExchangeEngine):
    """For a worker that speaks for its machine, because nobody else lives there."""

    repeatable = True

    def __init__(self, group: LinkedGroup, by: str = "auto") -> None:
        self.group = group
        self._between = LinkEngine(group, among=group.leaders, by=by)
        self._payloads = LinkEngine(group)

    def _assign(self) -> None:
        """An exchange begins, or begins again: among those that speak for a machine now."""
        self._between.among = self.group.leaders

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        return self._between.open(spaces)

    def prepare(self) -> None:
        self._assign()
        self._between.prepare()
        self._payloads.prepare()

    def start(self, index: int) -> None:
        self._between.start(index)

    def progress(self) -> None:
        pass

    def finish(self, index: int) -> None:
        self._between.finish(index)

    def hurry(self, urgencies: Sequence[int]) -> None:
        self._between.hurry(urgencies)
        self._payloads.hurry(urgencies)

    def whole(self) -> bool:
        return self._between.whole() and self._payloads.whole()

    def repeat(self) -> None:
        self._assign()
        self._between.repeat()
        self._payloads.repeat()

    def recover(self) -> None:
        pass  # every result is here already

    def forget(self) -> None:
        self._between.forget()
        self._payloads.forget()

    def wire(self, index: int) -> int:
        return self._between.wire(index)

    def landed(self, index: int) -> bool:
        return self._between.landed(index)

    def arrival(self, index: int) -> float | None:
        return self._between.arrival(index)

    def network(self) -> NetworkEstimate:
        return self._between.network()

    def open_payloads(self, parcels: Sequence[PayloadSpec]) -> list[Tensor]:
        return self._payloads.open_payloads(parcels)

    def post(self, index: int, length: int) -> None:
        self._payloads.post(index, length)

    def await_payload(self, index: int) -> None:
        self._payloads.await_payload(index)

    def collect(self, index: int) -> list[Tensor]:
        return self._payloads.collect(index)

    def distrust(self, rank: int, error: PayloadError) -> None:
        self._payloads.distrust(rank, error)

    def release(self, index: int) -> None:
        self._payloads.release(index)

    def payload_landed(self, index: int) -> bool:
        return self._payloads.landed(index)

    def payload_wire(self, index: int) -> int:
        return self._payloads.payload_wire(index)
