"""The contract of an engine: it owns the memory of buckets and replaces their content by the sum over all workers.

    pairs = engine.open(spaces)        once, on every worker with the same spaces; (what leaves, what comes back)
    engine.prepare()                   before the first of them is written again
    … fill what leaves of pair i …
    engine.start(i)                    it is full here; never blocks; on every worker in the same order
    engine.progress()                  do what can be done without waiting
    engine.finish(i)                   what comes back is the sum; waits, with a deadline and a named suspect

and, beside summing, carries payloads whose length differs from worker to worker, up to a bound:

    areas = engine.open_payloads(parcels)   once, on every worker with the same parcels; where own payloads are written
    engine.prepare()                        before the first of them is written again
    engine.post(i, length)                  own payload i is complete; never blocks; on every worker in the same order
    engine.collect(i)                       everybody's payload i, in order of rank; waits, as `finish` does; all
                                            payloads of a pass are posted before the first is collected
    engine.release(i)                       they are not read any more

Both may be the same tensor. Between `finish` and the next `prepare` what came back belongs to the caller alone. All
workers get the same bits.

Where members may be lost in the middle, an engine leaves what left as it was until the next `prepare`, and can

    engine.whole()      tell whether all that has started here could be finished from what is there now
    engine.repeat()     let all that has started start again, among the members of the new view
    engine.recover()    finish all that has started without anybody's help: it was whole when the view ended

After `repeat` and `recover` everything is finished again.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from shoal.core.errors import UsageError
from shoal.wire.bucket import Space


@dataclass(frozen=True)
class Parcel:
    """A payload to be exchanged again and again."""

    bound: int
    """The most bytes it can have."""
    exact: bool = False
    """Whether it always has that many: then no length needs to travel, and collected payloads are `bound` long."""


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

    repeatable: bool = False
    """Whether it can do the last three."""

    def whole(self) -> bool:
        raise NotImplementedError

    def repeat(self) -> None:
        raise NotImplementedError

    def recover(self) -> None:
        raise NotImplementedError

    @abstractmethod
    def wire(self, index: int) -> int:
        """Bytes this worker puts on sockets to sum bucket `index` once."""

    def open_payloads(self, parcels: Sequence[Parcel]) -> list[Tensor]:
        """Own areas of bytes, `bound` long, aligned to 64."""
        raise UsageError(f"{type(self).__name__} only adds up: it carries no codec's payloads; use another engine")

    def post(self, index: int, length: int) -> None:
        raise NotImplementedError

    def collect(self, index: int) -> list[Tensor]:
        raise NotImplementedError

    def release(self, index: int) -> None:
        raise NotImplementedError

    def payload_wire(self, index: int) -> int:
        """Bytes this worker put on sockets for payload `index`, once it was collected."""
        raise NotImplementedError
