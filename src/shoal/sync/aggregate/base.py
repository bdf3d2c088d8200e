"""The contract of an aggregator: the gradients of bucket i go in on every worker, their sum comes out on every worker.

    aggregator.open(layouts, observer)     once; one layout per bucket; `observer` counts bytes and waits
    aggregator.prepare()                   before the first bucket of an exchange
    aggregator.start(i, values, present)   bucket i is full: encode and send it; `present` says which layers it has
    aggregator.start_non_finite(i)         instead: this worker's numbers are not finite; codecs keep their state
    aggregator.all_started()               all buckets of this exchange have started
    aggregator.progress()                  never blocks
    aggregator.await_arrival(i)            wait until finish(i) has only to decode, if that can be told apart
    aggregator.finish(i, out)              out = the sum; returns how many workers had each layer, NaN if one's
                                           numbers were not finite

`values` are float32 on the CPU, are not changed, and stay as they are until the next `prepare`. Buckets start in the
same order everywhere, and all have started before the first is finished. All workers get the same bits. A `retryable`
aggregator may finish everything again, after `retry` or `finish_locally`, without changing its state twice.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from shoal.core.clock import now
from shoal.sync.engine.base import ExchangeEngine
from shoal.sync.observer import ExchangeObserver
from shoal.sync.retryable import RetryableOperation
from shoal.wire.codec import State
from shoal.wire.layout import FlatLayout
from shoal.wire.redeal import folded


class PayloadAggregator(RetryableOperation, ABC):
    """Combines the coded buckets of all workers."""

    kind: str = "sum"
    """How payloads are combined: sum, gather or twostage."""
    engine: ExchangeEngine
    """The engine that carries the last thing a bucket waits for."""
    observer: ExchangeObserver

    def open(self, layouts: Sequence[FlatLayout], observer: ExchangeObserver) -> None:
        self.observer = observer
        self._open(layouts)

    @abstractmethod
    def _open(self, layouts: Sequence[FlatLayout]) -> None: ...

    @abstractmethod
    def prepare(self) -> None: ...

    @abstractmethod
    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None: ...

    @abstractmethod
    def start_non_finite(self, index: int) -> None: ...

    def all_started(self) -> None:
        """All buckets of this exchange have started."""

    def progress(self) -> None:
        self.engine.progress()

    @abstractmethod
    def is_done(self, index: int) -> bool:
        """Return whether `finish(i)` would not wait; False if the aggregator cannot tell."""

    def await_arrival(self, index: int) -> None:
        """Wait until `finish(i)` has only to decode."""

    @abstractmethod
    def finish(self, index: int, out: Tensor) -> list[float]: ...

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        return self.engine.retryable

    def is_complete(self) -> bool:
        return self.engine.is_complete()

    def retry(self) -> None:
        self.engine.retry()

    def finish_locally(self) -> None:
        self.engine.finish_locally()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting for other workers."""
        began = now()
        yield
        self.observer.wait_seconds += now() - began

    def residual(self, index: int) -> Tensor | None:
        """Return what of bucket i waits here for later steps, if the codec keeps any."""
        return None

    def state(self) -> State:
        """Return the codecs' state as tensors named `kind.layer`; views, so that they can be loaded in place."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on with what `state` returned, here or elsewhere."""
        given = folded(state)
        for name, own in self.state().items():
            if name in given and given[name].shape == own.shape:
                own.copy_(given[name])

    def shared(self) -> State:
        """Return the part of `state` that is the same on all workers: newcomers take it over with the weights."""
        return {}


class StatefulAggregator(PayloadAggregator):
    """One whose codec keeps a state for each bucket, which the aggregator of another view can take over."""

    _states: list[State]
    _steps: list[int]

    def changed_tensors(self, index: int) -> list[Tensor]:
        """Return all state that an exchange of bucket `index` changes."""
        return list(self._states[index].values())

    def merge_residuals(self) -> None:
        """Move residuals that depend on the view into the states of buckets, which do not."""

    def hand_over(self, other: "StatefulAggregator") -> None:
        """Let `other`, which was opened for the same buckets, continue from this one's state."""
        self.merge_residuals()
        # steps, too: random codecs draw by step, and must not draw the same numbers again
        other._states, other._steps = self._states, self._steps
