"""PowerSGD: the factors of each matrix are summed in two rounds, all P first, then, from the orthogonal P, all Q.

    start(i)        P = M Q; start the sum of P; the backward pass goes on
    first finish    for every bucket: wait for P, compute Q, start the sum of Q
    finish(i)       wait for Q; the sum of all M is about P Q^T

A worker that lacks a layer adds zeros to it and keeps its residual. M, this worker's P and the Q it came from stay
until the next exchange: after a loss both rounds are made again from them, and Q and residuals end up as if the last
round had been the only one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.sync.aggregate.base import PayloadAggregator
from shoal.sync.engine.base import AllReduceEngine
from shoal.wire.bucket import BucketSpace
from shoal.wire.codec import State, refuse_non_finite
from shoal.wire.codecs.lowrank import LowRankCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import RESIDUAL


class LowRankAggregator(PayloadAggregator):
    """On two engines: `first` sums P, `engine` sums Q."""

    engine: AllReduceEngine

    def __init__(self, codec: LowRankCodec, first: AllReduceEngine, engine: AllReduceEngine, feedback: bool) -> None:
        self.codec, self.first, self.engine, self.feedback = codec, first, engine, feedback
        self._started: list[int] = []
        """Buckets of this exchange, in order."""
        self._halfway: list[int] = []
        """Those whose Q has not started yet."""

    def _open(self, layouts: Sequence[FlatLayout]) -> None:
        self._layouts = layouts
        cpu, sizes = torch.device("cpu"), [self.codec.sizes(layout) for layout in layouts]
        wide = [first + len(layout.parts) for (first, _), layout in zip(sizes, layouts, strict=True)]
        self._ps = self.first.open([BucketSpace(size, torch.float32, cpu) for size in wide])
        self._qs = self.engine.open([BucketSpace(max(second, 1), torch.float32, cpu) for _, second in sizes])
        self._bases = [torch.zeros(first) for first, _ in sizes]
        """The sum of P, made orthogonal: a copy, because a retry writes the engine's result again."""
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
            # absent layers add zeros, not their residual: nobody would use the sum
            if not here:
                whole[part.offset : part.end].zero_()
        self._send_p(index, present, torch.tensor(present, dtype=torch.float32))

    def start_non_finite(self, index: int) -> None:
        parts = len(self._layouts[index].parts)
        self._wholes[index].zero_()
        self._send_p(index, [False] * parts, torch.full([parts], torch.nan))

    def _send_p(self, index: int, present: Sequence[bool], marks: Tensor) -> None:
        """Start the sum of P, with a mark for every layer."""
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

    def _count(self, engine: AllReduceEngine, pairs: Sequence[tuple[Tensor, Tensor]], index: int) -> None:
        self.observer.sent_bytes += 4 * pairs[index][0].numel()
        self.observer.wire_bytes += engine.wire_bytes(index)

    def progress(self) -> None:
        self.first.progress()
        self.engine.progress()

    def is_done(self, index: int) -> bool:
        return False  # no Q starts before the first bucket is finished

    def residual(self, index: int) -> Tensor | None:
        return self._rests[index] if self.feedback else None

    def finish(self, index: int, out: Tensor) -> list[float]:
        for started in self._halfway:
            self._send_q(started)
        self._halfway = []
        with self.waiting():
            self.engine.finish(index)
        self._count(self.engine, self._qs, index)  # with its own bucket, though all Q left at once
        layout = self._layouts[index]
        first, second = self.codec.sizes(layout)
        factor = self._qs[index][1][:second]
        # from Q as it was, because `finish` may come again after a retry
        for name, q in self._before[index].items():
            self._states[index][name].copy_(q)
        self.codec.keep(factor, layout, self._states[index])
        self.codec.last(self._bases[index], factor, layout, out.zero_())
        return self._ps[index][1][first:].tolist()

    def _send_q(self, index: int) -> None:
        """Wait for the sum of P, compute Q from it and start its sum."""
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
    def retryable(self) -> bool:  # type: ignore[override]
        return self.first.retryable and self.engine.retryable

    def is_complete(self) -> bool:
        return not self._halfway and self.first.is_complete() and self.engine.is_complete()

    def retry(self) -> None:
        """Send P again as it was; drop Q, which was computed from a sum that does not count."""
        self.first.retry()
        self.engine.abandon()
        self._halfway = list(self._started)

    def finish_locally(self) -> None:
        self.first.finish_locally()
        self.engine.finish_locally()

    def state(self) -> State:
        found: State = {}
        for layout, state, rest in zip(self._layouts, self._states, self._rests, strict=True):
            found |= self.codec.name_state({**state, **({RESIDUAL: rest} if self.feedback else {})}, layout)
        return found

    def shared(self) -> State:
        return {name: q for state in self._states for name, q in state.items()}
