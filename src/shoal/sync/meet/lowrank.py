"""The factors of lowrank are summed in two rounds: all P first, then, made orthogonal, all Q.

    start(i)        P = M Q, and the sum of P begins; the backward pass goes on
    first finish    for every bucket: wait for P, compute Q, begin the sum of Q
    finish(i)       wait for Q; the sum of all M is about P Q^T

A worker that lacks a layer adds zeros to it, and keeps its residual of it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.sync.engine.base import Engine
from shoal.sync.meet.base import Meeting
from shoal.wire.bucket import Space
from shoal.wire.codec import State, refuse_non_finite
from shoal.wire.codecs.lowrank import LowRank
from shoal.wire.layout import Layout
from shoal.wire.wrappers.feedback import RESIDUAL


class LowRankMeeting(Meeting):
    """PowerSGD, on an engine that sums. Bucket i's P is number 2i of the engine, its Q number 2i + 1."""

    one_round = False

    def __init__(self, codec: LowRank, engine: Engine, feedback: bool) -> None:
        self.codec, self.engine, self.feedback = codec, engine, feedback
        self._started: list[int] = []

    def open(self, layouts: Sequence[Layout]) -> None:
        self._layouts = layouts
        cpu, spaces = torch.device("cpu"), []
        for layout in layouts:
            first, second = self.codec.sizes(layout)
            spaces += [Space(first + len(layout.parts), torch.float32, cpu), Space(max(second, 1), torch.float32, cpu)]
        self._pairs = self.engine.open(spaces)
        self._states = [self.codec.start(layout) for layout in layouts]
        self._rests = [torch.zeros(layout.numel) for layout in layouts]
        self._wholes = [torch.zeros(layout.numel) for layout in layouts]
        self._present: list[Sequence[bool]] = [()] * len(layouts)

    def prepare(self) -> None:
        self.engine.prepare()

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        layout, whole = self._layouts[index], self._wholes[index]
        refuse_non_finite(values, layout)
        whole.copy_(values)
        if self.feedback:
            whole.add_(self._rests[index])
        for part, here in zip(layout.parts, present, strict=True):
            if not here:
                whole[part.offset : part.end].zero_()
        self._present[index] = list(present)
        first, _ = self.codec.sizes(layout)
        leaving = self._pairs[2 * index][0]
        self.codec.first(whole, layout, self._states[index], leaving[:first])
        leaving[first:].copy_(torch.tensor(present, dtype=torch.float32))
        self.engine.start(2 * index)
        self._count(2 * index)
        self._started.append(index)

    def _count(self, number: int) -> None:
        self.sent += 4 * self._pairs[number][0].numel()
        self.wire += self.engine.wire(number)

    def progress(self) -> None:
        self.engine.progress()

    def landed(self, index: int) -> bool:
        return False  # Q does not leave before the first is finished

    def residual(self, index: int) -> Tensor | None:
        return self._rests[index] if self.feedback else None

    def finish(self, index: int, out: Tensor) -> list[float]:
        for started in self._started:
            self._turn(started)
        self._started.clear()
        with self.waiting():
            self.engine.finish(2 * index + 1)
        self._count(2 * index + 1)  # with its own bucket, though all Q left at once
        layout = self._layouts[index]
        first, second = self.codec.sizes(layout)
        summed, factor = self._pairs[2 * index][1], self._pairs[2 * index + 1][1]
        self.codec.keep(factor[:second], layout, self._states[index])
        self.codec.last(summed[:first], factor[:second], layout, out.zero_())
        return summed[first:].tolist()

    def _turn(self, index: int) -> None:
        """From P to Q."""
        with self.waiting():
            self.engine.finish(2 * index)
        layout, rest = self._layouts[index], self._rests[index]
        first, second = self.codec.sizes(layout)
        kept = [
            (rest[p.offset : p.end], rest[p.offset : p.end].clone())
            for p, here in zip(layout.parts, self._present[index], strict=True)
            if not here
        ]
        leaving = self._pairs[2 * index + 1][0]
        self.codec.second(
            self._pairs[2 * index][1][:first], self._wholes[index], layout, leaving[:second],
            rest if self.feedback else None,
        )  # fmt: skip
        for view, before in kept:
            view.copy_(before)
        self.engine.start(2 * index + 1)

    def state(self) -> State:
        found: State = {}
        for layout, state, rest in zip(self._layouts, self._states, self._rests, strict=True):
            found |= self.codec.named({**state, **({RESIDUAL: rest} if self.feedback else {})}, layout)
        return found
