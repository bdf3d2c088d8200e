"""Payloads are gathered; everybody decodes all of them and adds them up in order of rank.

    what kind (1 byte: 0 nothing, 1 coded, 2 spoiled) | which layers it has, a bit each | padding to 16 | the codec's
    payload

A worker that has nothing, or nothing finite, sends only that, and keeps its residual. A layer it has not keeps its
residual too: nobody would use it. With p workers each sends its payload p - 1 times and decodes p: right for few.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.sync.aggregate.base import StatefulAggregator
from shoal.sync.aggregate.presence import Marks, held, none, read_marks, write_marks
from shoal.sync.engine.base import ExchangeEngine, PayloadSpec
from shoal.wire.codec import GradientCodec, State, aligned
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import padded
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import RESIDUAL

NOTHING, CODED, SPOILED = 0, 1, 2
TRIAL = FlatLayout.of([("matrix", (64, 48)), ("vector", (48,))])


class GatherAggregator(StatefulAggregator):
    """Any codec, on an engine that carries payloads."""

    kind = "gather"

    def __init__(
        self, codec: GradientCodec, engine: ExchangeEngine, rank: int, seed: int, widest: GradientCodec | None = None
    ) -> None:
        """`widest`: what the codec may be replaced by between two steps, at the most."""
        self.codec, self.engine, self.rank, self.seed, self._widest = codec, engine, rank, seed, widest
        self._layouts: Sequence[FlatLayout] = ()
        self._states = []

    def open(self, layouts: Sequence[FlatLayout]) -> None:
        self._layouts = layouts
        self._states = [self.codec.init_state(layout) for layout in layouts]
        exact = self.codec.fixed_size and self._widest is None
        most = [max(codec.max_bytes(n) for codec in (self.codec, self._widest or self.codec)) for n in layouts]
        parcels = [PayloadSpec(prefix_of(layout) + size, exact) for layout, size in zip(layouts, most, strict=True)]
        self._areas = self.engine.open_payloads(parcels)
        self._steps = [0] * len(layouts)
        # compile what is not compiled yet now, not in the first step
        self.codec.decode(self.codec.encode(torch.linspace(-1, 1, TRIAL.numel), TRIAL)[0], TRIAL)

    def prepare(self) -> None:
        self.engine.prepare()

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        layout, state = self._layouts[index], self._states[index]
        moment = EncodeContext(self.seed, self._steps[index], self.rank, index)
        with self._held(index, present):
            self._post(index, present, lambda out: self.codec.encode_into(values, layout, state, moment, out))
        self._steps[index] += 1

    def spoil(self, index: int) -> None:
        self._post(index, (), lambda out: 0, SPOILED)
        self._steps[index] += 1

    def _post(
        self, index: int, present: Sequence[bool], write: Callable[[Tensor], int], otherwise: int = NOTHING
    ) -> None:
        """Let go of what `write` writes, if there is anything; else of the word `otherwise`."""
        area, start = self._areas[index], prefix_of(self._layouts[index])
        length = start
        area[:start].zero_()
        area[0] = otherwise
        if any(present):
            length += write(area[start:])
            write_marks(present, area[1:start])
            area[0] = CODED
        self.sent += length
        self.engine.post(index, length)

    def _held(self, index: int, present: Sequence[bool]) -> AbstractContextManager[None]:
        if all(present):
            return nullcontext()
        layout = self._layouts[index]
        absent = {part.name for part, here in zip(layout.parts, present, strict=True) if not here}
        return held(self.codec.name_state(self._states[index], layout), absent)

    def progress(self) -> None:
        self.engine.progress()

    def landed(self, index: int) -> bool:
        return self.engine.payload_landed(index)

    def residual(self, index: int) -> Tensor | None:
        return self._states[index].get(RESIDUAL)

    def arrive(self, index: int) -> None:
        with self.waiting():
            self.engine.await_payload(index)

    def finish(self, index: int, out: Tensor) -> list[float]:
        layout = self._layouts[index]
        count = np.zeros(len(layout.parts))
        with self.waiting():
            payloads = self.engine.collect(index)
        for rank, payload in enumerate(payloads):
            try:
                count += self._add(payload, layout, out, fresh=rank == 0)
            except PayloadError as error:
                self.engine.distrust(rank, PayloadError(f"worker {rank}: {error}"))
                count += none(len(layout.parts), spoiled=True)  # nobody uses the sum
        self.engine.release(index)
        self.wire += self.engine.payload_wire(index)
        return [float(n) for n in count]

    def _add(self, payload: Tensor, layout: FlatLayout, out: Tensor, fresh: bool) -> Marks:
        """out += what a worker sent, or out = that; returns which layers it has."""
        start, parts = prefix_of(layout), len(layout.parts)
        if payload.numel() < start or int(payload[0]) not in (NOTHING, CODED, SPOILED):
            raise PayloadError(f"a payload of {payload.numel()} bytes begins with no kind that is known; it is foreign")
        if int(payload[0]) != CODED:
            if fresh:
                out.zero_()
            return none(parts, int(payload[0]) == SPOILED)
        (self.codec.decode_into if fresh else self.codec.decode_add)(aligned(payload[start:]), layout, out)
        return read_marks(payload[1:start], parts)

    def state(self) -> State:
        found: State = {}
        for layout, state in zip(self._layouts, self._states, strict=True):
            found |= self.codec.name_state(state, layout)
        return found


def prefix_of(layout: FlatLayout) -> int:
    """Bytes before the codec's own."""
    return padded(1 + -(-len(layout.parts) // 8))
