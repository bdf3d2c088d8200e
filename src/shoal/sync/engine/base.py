"""The contract of an engine: it owns the memory of buckets and replaces their content by the sum over all workers.

    pairs = engine.open(spaces)        once, on every worker with the same spaces; (what leaves, what comes back)
    engine.prepare()                   before the first of them is written again
    … fill what leaves of pair i …
    engine.start(i)                    it is full here; never blocks; on every worker in the same order
    engine.progress()                  do what can be done without waiting
    engine.landed(i)                   whether `finish(i)` would find all it waits for; never blocks
    engine.finish(i)                   what comes back is the sum; waits, with a deadline and a named suspect

and, beside summing, carries payloads whose length differs from worker to worker, up to a bound:

    areas = engine.open_payloads(parcels)   once, on every worker with the same parcels; where own payloads are written;
                                            again before `prepare`, in a view for which other parcels are needed
    engine.prepare()                        before the first of them is written again
    engine.post(i, length)                  own payload i is complete; never blocks; on every worker in the same order
    engine.collect(i)                       everybody's payload i, in order of rank; waits, as `finish` does; all
                                            payloads of a pass are posted before the first is collected
    engine.release(i)                       they are not read any more

A payload may be cut into one piece for each worker: then everybody collects the pieces that are for it.

Both may be the same tensor. Between `finish` and the next `prepare` what came back belongs to the caller alone. All
workers get the same bits.

Where members may be lost in the middle, what left stays as it was until the next `prepare`: see `sync/repeatable.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor

from shoal.core.errors import PayloadError, UsageError
from shoal.sync.price import NetworkEstimate
from shoal.sync.repeatable import RetryableExchange
from shoal.wire.bucket import BucketSpace


@dataclass(frozen=True)
class PayloadSpec:
    """A payload to be exchanged again and again."""

    bound: int
    """The most bytes it can have."""
    exact: bool = False
    """Whether it always has that many: then no length needs to travel, and collected payloads are `bound` long."""
    pieces: int = 1
    """Above 1: as many as there are workers, each of at most `bound` bytes and `bound` apart. Worker r gets piece r
    only; the length that is posted is the longest piece's."""
    room: int = 0
    """Bytes its area may need when it is opened again; the same each time. Memory that is shared is not taken twice."""

    @property
    def area(self) -> int:
        """Bytes that are written to."""
        return self.bound * self.pieces


class ExchangeEngine(RetryableExchange, ABC):
    """Sums buckets over a group. Used by the thread that runs the backward pass, and by no other."""

    @abstractmethod
    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]: ...

    def prepare(self) -> None:
        """Wait until nobody reads what left last time; most engines have nothing to wait for."""

    @abstractmethod
    def start(self, index: int) -> None: ...

    @abstractmethod
    def progress(self) -> None: ...

    @abstractmethod
    def finish(self, index: int) -> None: ...

    def hurry(self, urgencies: Sequence[int]) -> None:
        """Let bucket or payload i leave before those with a higher number, from the next `start` or `post` on."""

    def arrival(self, index: int) -> float | None:
        """When what was finished last as `index` had come in, by `core.clock.now`; None where nobody looked."""
        return None

    def forget(self) -> None:
        """After a view has ended: what has started comes to nothing, and nobody owes anybody anything of it."""
        self.whole()

    @abstractmethod
    def wire(self, index: int) -> int:
        """Bytes this worker puts on sockets to sum bucket `index` once."""

    def landed(self, index: int) -> bool:
        """Asked between `start` and `finish`; False where nobody can tell."""
        return False

    def payload_landed(self, index: int) -> bool:
        """Asked between `post` and `collect`; False where nobody can tell."""
        return False

    def network(self) -> NetworkEstimate:
        """What is known of the way to the others."""
        return NetworkEstimate()

    def open_payloads(self, parcels: Sequence[PayloadSpec]) -> list[Tensor]:
        """Own areas of bytes, `bound` (times the pieces) long, aligned to 64."""
        self._refuse()

    def post(self, index: int, length: int) -> None:
        self._refuse()

    def await_payload(self, index: int) -> None:
        """Wait for what `collect` waits for, where that may be done before."""

    def collect(self, index: int) -> list[Tensor]:
        self._refuse()

    def distrust(self, rank: int, error: PayloadError) -> None:
        """A worker's payload cannot be read. Raises the error, or has the worker evicted where members may change."""
        raise error

    def release(self, index: int) -> None:
        self._refuse()

    def payload_wire(self, index: int) -> int:
        """Bytes this worker put on sockets for payload `index`, once it was collected."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError(f"{type(self).__name__} only adds up: it carries no codec's payloads; use another engine")
