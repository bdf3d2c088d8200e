"""All-gather: every worker decodes the payloads of all and adds them up in order of rank.

    kind (1 byte: 0 nothing, 1 coded, 2 not finite) | which layers it has, a bit each | padding to 16 | the codec's
    payload

A worker that has nothing, or nothing finite, sends only the prefix, and keeps its residual. A layer it lacks keeps its
residual too: nobody would use it. With p workers each sends its payload p - 1 times and decodes p: right for few.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.sync.aggregate.base import StatefulAggregator
from shoal.sync.aggregate.presence import Marks, no_marks, read_marks, without_state_of, write_marks
from shoal.sync.engine.base import PayloadEngine, PayloadSpec
from shoal.wire.codec import GradientCodec, State, aligned
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import padded
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import RESIDUAL

NOTHING, CODED, NON_FINITE = 0, 1, 2
"""Kinds of payloads."""
TRIAL = FlatLayout.of([("matrix", (64, 48)), ("vector", (48,))])
"""What kernels are compiled with before the first step."""


class GatherAggregator(StatefulAggregator):
    """For any codec."""

    kind = "gather"
    engine: PayloadEngine

    def __init__(
        self, codec: GradientCodec, engine: PayloadEngine, rank: int, seed: int, widest: GradientCodec | None = None
    ) -> None:
        """`widest`: the codec with the longest payloads that may replace this one between two steps."""
        self.codec, self.engine, self.rank, self.seed, self._widest = codec, engine, rank, seed, widest
        self._layouts: Sequence[FlatLayout] = ()
        self._states = []

    def _open(self, layouts: Sequence[FlatLayout]) -> None:
        self._layouts = layouts
        self._states = [self.codec.init_state(layout) for layout in layouts]
        # a codec that may be replaced has payloads of several lengths
        exact = self.codec.fixed_size and self._widest is None
        most = [max(codec.max_bytes(n) for codec in (self.codec, self._widest or self.codec)) for n in layouts]
        specs = [PayloadSpec(prefix_of(layout) + size, exact) for layout, size in zip(layouts, most, strict=True)]
        self._areas = self.engine.open(specs)
        self._steps = [0] * len(layouts)
        # compile what is not compiled yet now, not in the first step
        self.codec.decode(self.codec.encode(torch.linspace(-1, 1, TRIAL.numel), TRIAL)[0], TRIAL)

    def prepare(self) -> None:
        self.engine.prepare()

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        layout, state = self._layouts[index], self._states[index]
        moment = EncodeContext(self.seed, self._steps[index], self.rank, index)
        with self._without_absent(index, present):
            self._post(index, present, lambda out: self.codec.encode_into(values, layout, state, moment, out))
        self._steps[index] += 1

    def start_non_finite(self, index: int) -> None:
        self._post(index, (), lambda out: 0, NON_FINITE)
        self._steps[index] += 1

    def _post(
        self, index: int, present: Sequence[bool], write: Callable[[Tensor], int], otherwise: int = NOTHING
    ) -> None:
        """Send what `write` writes if any layer is present, else a prefix of kind `otherwise`."""
        area, start = self._areas[index], prefix_of(self._layouts[index])
        length = start
        area[:start].zero_()
        area[0] = otherwise
        if any(present):
            length += write(area[start:])
            write_marks(present, area[1:start])
            area[0] = CODED
        self.observer.sent_bytes += length
        self.engine.post(index, length)

    def _without_absent(self, index: int, present: Sequence[bool]) -> AbstractContextManager[None]:
        if all(present):
            return nullcontext()
        layout = self._layouts[index]
        absent = {part.name for part, here in zip(layout.parts, present, strict=True) if not here}
        return without_state_of(absent, self.codec.name_state(self._states[index], layout))

    def is_done(self, index: int) -> bool:
        return self.engine.is_done(index)

    def residual(self, index: int) -> Tensor | None:
        return self._states[index].get(RESIDUAL)

    def await_arrival(self, index: int) -> None:
        with self.waiting():
            self.engine.await_payloads(index)

    def finish(self, index: int, out: Tensor) -> list[float]:
        layout = self._layouts[index]
        count = np.zeros(len(layout.parts))
        with self.waiting():
            payloads = self.engine.collect(index)
        for rank, payload in enumerate(payloads):
            try:
                count += self._add(payload, layout, out, fresh=rank == 0)
            except PayloadError as error:
                self.engine.reject(rank, PayloadError(f"worker {rank}: {error}"))
                count += no_marks(len(layout.parts), non_finite=True)  # so that nobody uses the sum
        self.engine.release(index)
        self.observer.wire_bytes += self.engine.wire_bytes(index)
        return [float(n) for n in count]

    def _add(self, payload: Tensor, layout: FlatLayout, out: Tensor, fresh: bool) -> Marks:
        """Add what a worker sent to `out`, or write it there if `fresh`; return which layers it has."""
        start, parts = prefix_of(layout), len(layout.parts)
        if payload.numel() < start or int(payload[0]) not in (NOTHING, CODED, NON_FINITE):
            kind = int(payload[0]) if payload.numel() else "missing"
            raise PayloadError(
                f"unknown payload type {kind} in {payload.numel()} bytes; peers must run the same Shoal and plan"
            )
        if int(payload[0]) != CODED:
            if fresh:
                out.zero_()
            return no_marks(parts, int(payload[0]) == NON_FINITE)
        (self.codec.decode_into if fresh else self.codec.decode_add)(aligned(payload[start:]), layout, out)
        return read_marks(payload[1:start], parts)

    def state(self) -> State:
        found: State = {}
        for layout, state in zip(self._layouts, self._states, strict=True):
            found |= self.codec.name_state(state, layout)
        return found


def prefix_of(layout: FlatLayout) -> int:
    """Return the bytes before the codec's own."""
    return padded(1 + -(-len(layout.parts) // 8))
