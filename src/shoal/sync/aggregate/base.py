"""The contract of a meeting: the gradients of bucket i go in on every worker, their sum comes out on every worker.

    meeting.open(layouts)               once; one layout per bucket
    meeting.prepare()                   before the first bucket of an exchange
    meeting.start(i, values, present)   bucket i is full: encode it and let it go; `present` says which layers it has
    meeting.spoil(i)                    instead: this worker's numbers of it are not finite; what it remembers stays
    meeting.launched()                  all buckets of this exchange have started
    meeting.progress()                  never blocks
    meeting.landed(i)                   whether all that finish(i) waits for is here
    meeting.arrive(i)                   wait for that, and no more, where it can be told from decoding
    meeting.finish(i, out)              out = the sum; returns how many workers had each layer, NaN if one was spoiled

`values` are float32 on the CPU, are not changed, and stay as they are until the next `prepare`. Buckets start in the
same order everywhere, and all have started before the first is finished. All workers get the same bits. A meeting that
is `repeatable` may finish everything again, after `repeat` or `recover`, without changing what it remembers twice.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from shoal.core.clock import now
from shoal.sync.engine.base import ExchangeEngine
from shoal.sync.repeatable import RetryableExchange
from shoal.wire.codec import State
from shoal.wire.layout import FlatLayout
from shoal.wire.redeal import folded


class PayloadAggregator(RetryableExchange, ABC):
    """Carries coded buckets."""

    sent: int = 0
    """Bytes of this worker's payloads so far."""
    wire: int = 0
    """Bytes this worker put on sockets so far."""

    waited: float = 0.0
    """Seconds this worker waited for others so far."""
    kind: str = "sum"
    """How payloads come together, in a word."""

    engine: ExchangeEngine
    """What carries the last that a bucket waits for."""

    @property
    def repeatable(self) -> bool:  # type: ignore[override]
        return self.engine.repeatable

    def whole(self) -> bool:
        return self.engine.whole()

    def repeat(self) -> None:
        self.engine.repeat()

    def recover(self) -> None:
        self.engine.recover()

    @abstractmethod
    def open(self, layouts: Sequence[FlatLayout]) -> None: ...

    @abstractmethod
    def prepare(self) -> None: ...

    @abstractmethod
    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None: ...

    @abstractmethod
    def spoil(self, index: int) -> None: ...

    def launched(self) -> None:
        """All buckets of this exchange have started."""

    @abstractmethod
    def progress(self) -> None: ...

    @abstractmethod
    def landed(self, index: int) -> bool:
        """Whether `finish(i)` would find all it waits for; False where nobody can tell."""

    def arrive(self, index: int) -> None:
        """Wait until `finish(i)` has only to decode."""

    @abstractmethod
    def finish(self, index: int, out: Tensor) -> list[float]: ...

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Round every wait for others."""
        began = now()
        yield
        self.waited += now() - began

    def residual(self, index: int) -> Tensor | None:
        """What of bucket i waits here for later steps, if anything ever does."""
        return None

    def state(self) -> State:
        """What the codecs remember, as tensors named `kind.layer`; views, so that they can be loaded in place."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on with what `state` gave, here or elsewhere."""
        given = folded(state)
        for name, own in self.state().items():
            if name in given and given[name].shape == own.shape:
                own.copy_(given[name])

    def shared(self) -> State:
        """Of `state`, what is the same on all workers: newcomers take it over with the weights."""
        return {}


class StatefulAggregator(PayloadAggregator):
    """One whose codec keeps a state of each bucket: in another view, another may go on with it."""

    _states: list[State]
    _steps: list[int]

    def memory(self, index: int) -> list[Tensor]:
        """All that an exchange of bucket `index` changes."""
        return list(self._states[index].values())

    def fold(self) -> None:
        """Let everything that waits here wait in the states of buckets, which do not depend on the view."""

    def hand_over(self, other: "StatefulAggregator") -> None:
        """Let `other`, which was opened for the same buckets, go on in place of this one."""
        self.fold()
        other._states, other._steps = self._states, self._steps
        other.sent, other.wire, other.waited = self.sent, self.wire, self.waited
