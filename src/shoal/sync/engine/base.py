"""The two contracts of engines: summing flat tensors, and carrying payloads whose length differs by worker.

    pairs = sums.open(spaces)          once, on every worker with the same spaces; (what leaves, the result)
    sums.prepare()                     before the first tensor is written again
    … fill what leaves of pair i …
    sums.start(i)                      tensor i is full here; never blocks; on every worker in the same order
    sums.progress()                    do what needs no waiting
    sums.finish(i)                     the result is the sum; waits, with a deadline and a named suspect

    areas = payloads.open(specs)       once, on every worker with the same specs; again before `prepare`, in a view
                                       that needs other specs
    payloads.prepare()                 before the first area is written again
    payloads.post(i, length)           own payload i is complete; never blocks; on every worker in the same order
    payloads.collect(i)                all workers' payloads i, by rank; waits as `finish` does; all payloads of a
                                       pass are posted before the first is collected
    payloads.release(i)                the collected payloads are not read any more

What leaves and the result may be one tensor. Between `finish` and the next `prepare` the result belongs to the caller
alone, and all workers hold the same bits of it. Where members may be lost (`retryable`), what left stays as it was
until the next `prepare`. Only the thread that runs the backward pass uses an engine, except for `is_complete`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.sync.price import NetworkEstimate
from shoal.sync.retryable import RetryableOperation
from shoal.wire.bucket import BucketSpace


class ExchangeEngine(RetryableOperation, ABC):
    """What both kinds have in common; `index` is the number of a tensor or of a payload."""

    def prepare(self) -> None:
        """Wait until nobody reads what left in the last exchange."""

    def progress(self) -> None:
        """Do what can be done without waiting."""

    def set_priorities(self, priorities: Sequence[int]) -> None:
        """From the next `start` or `post` on, let those with a lower number leave first."""

    def is_done(self, index: int) -> bool:
        """Return whether finishing `index` would not wait; False if the engine cannot tell. Never blocks."""
        return False

    def arrival_time(self, index: int) -> float | None:
        """Return when the last result of `index` arrived, by `core.clock.now`; None if the engine cannot tell."""
        return None

    def estimate_network(self) -> NetworkEstimate:
        """Return what is known of the links to the other workers."""
        return NetworkEstimate()

    def abandon(self) -> None:
        """After a view has ended: drop what has started, without finishing it."""
        # raises where nothing can be repeated; engines that can repeat override this
        self.is_complete()

    @abstractmethod
    def wire_bytes(self, index: int) -> int:
        """Return the bytes this worker puts on sockets for `index` in one exchange; of a payload, once collected."""


class AllReduceEngine(ExchangeEngine):
    """Replaces flat tensors by their sum over all workers."""

    @abstractmethod
    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        """Return, for each space, the tensor that leaves and the tensor that receives the sum."""

    @abstractmethod
    def start(self, index: int) -> None: ...

    @abstractmethod
    def finish(self, index: int) -> None: ...


class LeaderSumEngine(AllReduceEngine):
    """Sums among some of the workers, such as the first one of each host."""

    among: Sequence[int] | None
    """Ranks or slots of those that take part; None: all."""

    @abstractmethod
    def has_result(self, index: int) -> bool:
        """Return whether the sum has come, or has been taken already; not for a sum that failed."""


@dataclass(frozen=True)
class PayloadSpec:
    """A payload that is exchanged again and again."""

    bound: int
    """The most bytes it can have."""
    exact: bool = False
    """Whether it always has `bound` bytes: then no length travels."""
    pieces: int = 1
    """Above 1: one piece for each worker, each of at most `bound` bytes and `bound` apart. Worker r gets piece r only;
    the posted length is that of the longest piece."""
    room: int = 0
    """The most bytes its area may need in any view, because shared memory cannot be taken twice."""

    @property
    def area(self) -> int:
        """Bytes of the area it is written to."""
        return self.bound * self.pieces


class PayloadEngine(ExchangeEngine):
    """Brings every worker's payloads to all others (all-gather), or to each its own piece (all-to-all)."""

    @abstractmethod
    def open(self, specs: Sequence[PayloadSpec]) -> list[Tensor]:
        """Return this worker's own areas: uint8 tensors of `spec.area` bytes, aligned to 64."""

    @abstractmethod
    def post(self, index: int, length: int) -> None: ...

    def await_payloads(self, index: int) -> None:
        """Wait for what `collect` waits for, if that can be done before."""

    @abstractmethod
    def collect(self, index: int) -> list[Tensor]: ...

    def release(self, index: int) -> None:
        """Let the other workers overwrite their payloads."""

    def reject(self, rank: int, error: PayloadError) -> None:
        """A payload of worker `rank` cannot be read: raise the error, or evict the worker where members change."""
        raise error
