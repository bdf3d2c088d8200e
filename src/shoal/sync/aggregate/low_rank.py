"""The factors of lowrank are summed in two rounds: all P first, then, made orthogonal, all Q.

    start(i)        P = M Q, and the sum of P begins; the backward pass goes on
    first finish    for every bucket: wait for P, compute Q, begin the sum of Q
    finish(i)       wait for Q; the sum of all M is about P Q^T

A worker that lacks a layer adds zeros to it, and keeps its residual of it. M, this worker's P and the Q it came from
stay until the next exchange: without a lost worker both rounds are made again from them, and Q and residuals are those
of the last round that was made, as if there had been no other.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.sync.aggregate.base import PayloadAggregator
from shoal.sync.engine.base import ExchangeEngine
from shoal.wire.bucket import BucketSpace
from shoal.wire.codec import State, refuse_non_finite
from shoal.wire.codecs.lowrank import LowRankCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import RESIDUAL


class LowRankAggregator(PayloadAggregator):
    """PowerSGD, on two engines that sum: `first` carries P, `engine` carries Q."""

    def __init__(self, codec: LowRankCodec, first: ExchangeEngine, engine: ExchangeEngine, feedback: bool) -> None:
        self.codec, self.first, self.engine, self.feedback = codec, first, engine, feedback
        self._started: list[int] = []
        """Buckets of this exchange, in order."""
        self._halfway: list[int] = []
        """Those whose Q has not left yet."""

    def open(self, layouts: Sequence[FlatLayout]) -> None:
        self._layouts = layouts
        cpu, sizes = torch.device("cpu"), [self.codec.sizes(layout) for layout in layouts]
        wide = [first + len(layout.parts) for (first, _), layout in zip(sizes, layouts, strict=True)]
        self._ps = self.first.open([BucketSpace(size, torch.float32, cpu) for size in wide])
        self._qs = self.engine.open([BucketSpace(max(second, 1), torch.float32, cpu) for _, second in sizes])
        self._bases = [torch.zeros(first) for first, _ in sizes]
        """The sum of P, made orthogonal: beside what came back, which others may write once more."""
        self._states = [self.codec.init_state(layout) for layout in layouts]
        self._before = [{name: q.clone() for name, q in state.items()} for state in self._states]
        """Q as it was when the exchange began."""
        self._rests = [torch.zeros(layout.numel) for layout in layouts]
        self._wholes = [torch.zeros(layout.numel) for layout in layouts]
        self._present: list[Sequence[bool]] = [()] * len(layouts)

    def prepare(self) -> None:
        self.first.prepare()
        self.engine.prepare()
        self._started, self._halfway = [], []

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        layout, whole = self._layouts[index], self._wholes[index]
        refuse_non_finite(values, layout)
        whole.copy_(values)
        if self.feedback:
            whole.add_(self._rests[index])
        for part, here in zip(layout.parts, present, strict=True):
            if not here:
                whole[part.offset : part.end].zero_()
        self._leave(index, present, torch.tensor(present, dtype=torch.float32))

    def spoil(self, index: int) -> None:
        parts = len(self._layouts[index].parts)
        self._wholes[index].zero_()
        self._leave(index, [False] * parts, torch.full([parts], torch.nan))

    def _leave(self, index: int, present: Sequence[bool], marks: Tensor) -> None:
        """P of what there is leaves, with a mark of every layer."""
        layout, leaving = self._layouts[index], self._ps[index][0]
        self._present[index] = list(present)
        first, _ = self.codec.sizes(layout)
        for name, q in self._states[index].items():
            self._before[index][name].copy_(q)
        self.codec.first(self._wholes[index], layout, self._states[index], leaving[:first])
        leaving[first:].copy_(marks)
        self._started.append(index)
        self._halfway.append(index)
        self.first.start(index)
        self._count(self.first, self._ps, index)

    def _count(self, engine: ExchangeEngine, pairs: Sequence[tuple[Tensor, Tensor]], index: int) -> None:
        self.sent += 4 * pairs[index][0].numel()
        self.wire += engine.wire(index)

    def progress(self) -> None:
        self.first.progress()
        self.engine.progress()

    def landed(self, index: int) -> bool:
        return False  # Q does not leave before the first is finished

    def residual(self, index: int) -> Tensor | None:
        return self._rests[index] if self.feedback else None

    def finish(self, index: int, out: Tensor) -> list[float]:
        for started in self._halfway:
            self._turn(started)
        self._halfway = []
        with self.waiting():
            self.engine.finish(index)
        self._count(self.engine, self._qs, index)  # with its own bucket, though all Q left at once
        layout = self._layouts[index]
        first, second = self.codec.sizes(layout)
        factor = self._qs[index][1][:second]
        for name, q in self._before[index].items():
            self._states[index][name].copy_(q)
        self.codec.keep(factor, layout, self._states[index])
        self.codec.last(self._bases[index], factor, layout, out.zero_())
        return self._ps[index][1][first:].tolist()

    def _turn(self, index: int) -> None:
        """From P to Q."""
        with self.waiting():
            self.first.finish(index)
        layout, rest = self._layouts[index], self._rests[index]
        first, second = self.codec.sizes(layout)
        kept = [
            (rest[p.offset : p.end], rest[p.offset : p.end].clone())
            for p, here in zip(layout.parts, self._present[index], strict=True)
            if not here
        ]
        base = self._bases[index].copy_(self._ps[index][1][:first])
        leaving = self._qs[index][0]
        self.codec.second(base, self._wholes[index], layout, leaving[:second], rest if self.feedback else None)
        for view, before in kept:
            view.copy_(before)
        self.engine.start(index)

    @property
    def repeatable(self) -> bool:  # type: ignore[override]
        return self.first.repeatable and self.engine.repeatable

    def whole(self) -> bool:
        return not self._halfway and self.first.whole() and self.engine.whole()

    def repeat(self) -> None:
        """P again as it left; what was computed from a sum that does not count, Q, comes to nothing."""
        self.first.repeat()
        self.engine.forget()
        self._halfway = list(self._started)

    def recover(self) -> None:
        self.first.recover()
        self.engine.recover()

    def state(self) -> State:
        found: State = {}
        for layout, state, rest in zip(self._layouts, self._states, self._rests, strict=True):
            found |= self.codec.name_state({**state, **({RESIDUAL: rest} if self.feedback else {})}, layout)
        return found

    def shared(self) -> State:
        return {name: q for state in self._states for name, q in state.items()}
