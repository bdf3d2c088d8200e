"""Aggregation for members that change: each view has its own aggregator, and an exchange that a lost worker ended is
retried.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from shoal.sync.aggregate.base import PayloadAggregator, StatefulAggregator
from shoal.sync.engine.base import ExchangeEngine
from shoal.wire.codec import State
from shoal.wire.layout import FlatLayout

Place = tuple[int, int]
"""A worker's rank, and the number of workers."""


class ElasticAggregator(PayloadAggregator):
    """`make` makes the meeting of a place, on `engine`; `place` says which it is now."""

    inner: StatefulAggregator

    def __init__(
        self, engine: ExchangeEngine, make: Callable[[int, int], StatefulAggregator], place: Callable[[], Place]
    ) -> None:
        self.engine, self._make, self._place = engine, make, place
        self._offered: dict[int, tuple[Tensor, Sequence[bool]] | None] = {}
        """What has started, in order; None: it was spoiled."""
        self._before: dict[int, list[tuple[Tensor, Tensor]]] = {}
        """States of these buckets, and what they were before."""
        self._copies: dict[int, list[Tensor]] = {}
        self._again = False
        """Whether all of it is to start once more."""

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.inner.kind

    @property
    def sent(self) -> int:  # type: ignore[override]
        return self.inner.sent

    @property
    def wire(self) -> int:  # type: ignore[override]
        return self.inner.wire

    @property
    def waited(self) -> float:  # type: ignore[override]
        return self.inner.waited

    def open(self, layouts: Sequence[FlatLayout]) -> None:
        self._layouts, self._at = layouts, self._place()
        self.inner = self._opened()

    def _opened(self) -> StatefulAggregator:
        found = self._make(*self._at)
        found.open(self._layouts)
        return found

    def _follow(self) -> None:
        """Meet as all members of this view do."""
        if (place := self._place()) != self._at:
            before, self._at = self.inner, place
            self.inner = self._opened()
            before.hand_over(self.inner)

    def prepare(self) -> None:
        self._offered.clear()
        self._before.clear()
        self._again = False
        self._follow()
        self.inner.prepare()

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        self._offered[index] = (values, list(present))
        self._start(index)

    def spoil(self, index: int) -> None:
        self._offered[index] = None
        self._start(index)

    def _start(self, index: int) -> None:
        tensors, copies = self.inner.memory(index), self._copies.get(index, [])
        if [tensor.shape for tensor in tensors] != [copy.shape for copy in copies]:
            copies = self._copies[index] = [torch.empty_like(tensor) for tensor in tensors]
        self._before[index] = [(tensor, copy.copy_(tensor)) for tensor, copy in zip(tensors, copies, strict=True)]
        offered = self._offered[index]
        if offered is None:
            self.inner.spoil(index)
        else:
            self.inner.start(index, *offered)

    def launched(self) -> None:
        self.inner.launched()

    def progress(self) -> None:
        self.inner.progress()

    def landed(self, index: int) -> bool:
        return not self._again and self.inner.landed(index)

    def arrive(self, index: int) -> None:
        if self._again:
            self._restart()
        self.inner.arrive(index)

    def finish(self, index: int, out: Tensor) -> list[float]:
        if self._again:
            self._restart()
        return self.inner.finish(index, out)

    def _restart(self) -> None:
        """A view may end in here too: then it is done once more, from what is left to do."""
        while self._before:
            for tensor, before in self._before.popitem()[1]:
                tensor.copy_(before)
        self._follow()
        self.inner.prepare()
        for index in self._offered:
            self._start(index)
        self._again = False

    def whole(self) -> bool:
        return not self._again and self.inner.whole()

    def repeat(self) -> None:
        self._again = bool(self._offered)

    def residual(self, index: int) -> Tensor | None:
        return self.inner.residual(index)

    def state(self) -> State:
        return self.inner.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.inner.load(state)
