"""Aggregation where members change: each view has its own aggregator, and an exchange that a lost worker ended is
retried from the codec state it began with.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from shoal.sync.aggregate.base import PayloadAggregator, StatefulAggregator
from shoal.sync.engine.base import PayloadEngine
from shoal.wire.codec import State
from shoal.wire.layout import FlatLayout

Place = tuple[int, int]
"""A worker's rank, and the number of workers."""


class ElasticAggregator(PayloadAggregator):
    """`make` makes the aggregator for a place, on `engine`; `place` returns this worker's place in the current view."""

    inner: StatefulAggregator

    def __init__(
        self, engine: PayloadEngine, make: Callable[[int, int], StatefulAggregator], place: Callable[[], Place]
    ) -> None:
        self.engine, self._make, self._place = engine, make, place
        self._offered: dict[int, tuple[Tensor, Sequence[bool]] | None] = {}
        """What has started, in order; None: its numbers were not finite."""
        self._before: dict[int, list[tuple[Tensor, Tensor]]] = {}
        """The state tensors of these buckets, and copies from before the exchange."""
        self._copies: dict[int, list[Tensor]] = {}
        self._again = False
        """Whether all of it has to start again."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.inner.kind

    def _open(self, layouts: Sequence[FlatLayout]) -> None:
        self._layouts, self._at = layouts, self._place()
        self.inner = self._make_inner()

    def _make_inner(self) -> StatefulAggregator:
        found = self._make(*self._at)
        found.open(self._layouts, self.observer)
        return found

    def _follow_view(self) -> None:
        """Use the aggregator of this view's members."""
        if (place := self._place()) != self._at:
            before, self._at = self.inner, place
            self.inner = self._make_inner()
            before.hand_over(self.inner)

    def prepare(self) -> None:
        self._offered.clear()
        self._before.clear()
        self._again = False
        self._follow_view()
        self.inner.prepare()

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        # a copy of the list, which changes when its bucket is filled anew
        self._offered[index] = (values, list(present))
        self._start(index)

    def start_non_finite(self, index: int) -> None:
        self._offered[index] = None
        self._start(index)

    def _start(self, index: int) -> None:
        tensors, copies = self.inner.changed_tensors(index), self._copies.get(index, [])
        # copies are kept, so that a step allocates nothing
        if [tensor.shape for tensor in tensors] != [copy.shape for copy in copies]:
            copies = self._copies[index] = [torch.empty_like(tensor) for tensor in tensors]
        self._before[index] = [(tensor, copy.copy_(tensor)) for tensor, copy in zip(tensors, copies, strict=True)]
        offered = self._offered[index]
        if offered is None:
            self.inner.start_non_finite(index)
        else:
            self.inner.start(index, *offered)

    def all_started(self) -> None:
        self.inner.all_started()

    def progress(self) -> None:
        self.inner.progress()

    def is_done(self, index: int) -> bool:
        return not self._again and self.inner.is_done(index)

    def await_arrival(self, index: int) -> None:
        if self._again:
            self._restart()
        self.inner.await_arrival(index)

    def finish(self, index: int, out: Tensor) -> list[float]:
        if self._again:
            self._restart()
        return self.inner.finish(index, out)

    def _restart(self) -> None:
        """Start everything again. A view may end in here too: the next call goes on with what is left to do."""
        while self._before:
            for tensor, before in self._before.popitem()[1]:
                tensor.copy_(before)
        self._follow_view()
        self.inner.prepare()
        for index in self._offered:
            self._start(index)
        self._again = False

    def is_complete(self) -> bool:
        return not self._again and self.inner.is_complete()

    def retry(self) -> None:
        # only noted: what waits for the new members must not run where the view change is handled
        self._again = bool(self._offered)

    def residual(self, index: int) -> Tensor | None:
        return self.inner.residual(index)

    def state(self) -> State:
        return self.inner.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.inner.load(state)
