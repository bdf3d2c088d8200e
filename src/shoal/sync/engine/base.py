"""The contract of an engine: it owns the memory of buckets and replaces their content by the sum over all workers.

    pairs = engine.open(spaces)        once, on every worker with the same spaces; (what leaves, what comes back)
    engine.prepare()                   before the first of them is written again
    … fill what leaves of pair i …
    engine.start(i)                    it is full here; never blocks; on every worker in the same order
    engine.progress()                  do what can be done without waiting
    engine.finish(i)                   what comes back is the sum; waits, with a deadline and a named suspect

Both may be the same tensor. Between `finish` and the next `prepare` what came back belongs to the caller alone. All
workers get the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from shoal.wire.bucket import Space


class Engine(ABC):
    """Sums buckets over a group. Used by the thread that runs the backward pass, and by no other."""

    @abstractmethod
    def open(self, spaces: Sequence[Space]) -> list[tuple[Tensor, Tensor]]: ...

    def prepare(self) -> None:  # noqa: B027  (nothing to do is right for most)
        """Wait until nobody reads what left last time; most engines have nothing to wait for."""

    @abstractmethod
    def start(self, index: int) -> None: ...

    @abstractmethod
    def progress(self) -> None: ...

    @abstractmethod
    def finish(self, index: int) -> None: ...

    @abstractmethod
    def wire(self, index: int) -> int:
        """Bytes this worker puts on sockets to sum bucket `index` once."""
