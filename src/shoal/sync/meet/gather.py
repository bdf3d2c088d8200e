"""Payloads are gathered; everybody decodes all of them and adds them up in order of rank.

    what kind (1 byte: 0 nothing, 1 coded) | which layers it has, a bit each | padding to 16 | the codec's payload

A worker that has nothing sends only that it has nothing, and keeps its residual. A layer it has not keeps its residual
too: nobody would use it. With p workers each sends its payload p - 1 times and decodes p: right for few workers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.sync.engine.base import Engine, Parcel
from shoal.sync.meet.base import Meeting
from shoal.wire.codec import Codec, State, aligned
from shoal.wire.head import padded
from shoal.wire.layout import Layout
from shoal.wire.moment import Moment

NOTHING, CODED = 0, 1
TRIAL = Layout.of([("matrix", (64, 48)), ("vector", (48,))])


class GatherMeeting(Meeting):
    """Any codec, on an engine that carries payloads."""

    def __init__(self, codec: Codec, engine: Engine, rank: int, seed: int) -> None:
        self.codec, self.engine, self.rank, self.seed = codec, engine, rank, seed
        self._layouts: Sequence[Layout] = ()
        self._states: list[State] = []

    def open(self, layouts: Sequence[Layout]) -> None:
        self._layouts = layouts
        self._states = [self.codec.start(layout) for layout in layouts]
        parcels = [Parcel(prefix_of(layout) + self.codec.bound(layout), self.codec.exact) for layout in layouts]
        self._areas = self.engine.open_payloads(parcels)
        self._steps = [0] * len(layouts)
        # compile what is not compiled yet now, not in the first step
        self.codec.decode(self.codec.encode(torch.linspace(-1, 1, TRIAL.numel), TRIAL)[0], TRIAL)

    def prepare(self) -> None:
        self.engine.prepare()

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        layout, state = self._layouts[index], self._states[index]
        moment = Moment(self.seed, self._steps[index], self.rank, index)
        with self._held(index, present):
            self._post(index, present, lambda out: self.codec.pack(values, layout, state, moment, out))
        self._steps[index] += 1

    def _post(self, index: int, present: Sequence[bool], write: Callable[[Tensor], int]) -> None:
        """Let go of what `write` writes, if there is anything."""
        area, prefix = self._areas[index], prefix_of(self._layouts[index])
        length = prefix
        area[:prefix].zero_()
        if any(present):
            length += write(area[prefix:])
            marks = np.packbits(np.array(present, np.uint8), bitorder="little")
            area[1 : 1 + len(marks)].numpy()[:] = marks
            area[0] = CODED
        self.sent += length
        self.engine.post(index, length)

    @contextmanager
    def _held(self, index: int, present: Sequence[bool]) -> Iterator[None]:
        """Inside, layers that are absent have no state, so nothing of theirs is sent."""
        layout, kept = self._layouts[index], []
        if not all(present):
            absent = {part.name for part, here in zip(layout.parts, present, strict=True) if not here}
            named = self.codec.named(self._states[index], layout)
            kept = [(view, view.clone()) for name, view in named.items() if name.partition(".")[2] in absent]
            for view, _ in kept:
                view.zero_()
        yield
        for view, before in kept:
            view.copy_(before)

    def progress(self) -> None:
        self.engine.progress()

    def finish(self, index: int, out: Tensor) -> list[float]:
        layout = self._layouts[index]
        count = np.zeros(len(layout.parts))
        out.zero_()
        for rank, payload in enumerate(self.engine.collect(index)):
            try:
                count += self._add(payload, layout, out)
            except PayloadError as error:
                raise PayloadError(f"worker {rank}: {error}") from None
        self.engine.release(index)
        self.wire += self.engine.payload_wire(index)
        return [float(n) for n in count]

    def _add(self, payload: Tensor, layout: Layout, out: Tensor) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        prefix, parts = prefix_of(layout), len(layout.parts)
        if payload.numel() < prefix or int(payload[0]) not in (NOTHING, CODED):
            raise PayloadError(f"a payload of {payload.numel()} bytes begins with no kind that is known; it is foreign")
        if int(payload[0]) == NOTHING:
            return np.zeros(parts, np.uint8)
        self.codec.add(aligned(payload[prefix:]), layout, out)
        return np.unpackbits(payload[1:prefix].numpy(), count=parts, bitorder="little")

    def state(self) -> State:
        found: State = {}
        for layout, state in zip(self._layouts, self._states, strict=True):
            found |= self.codec.named(state, layout)
        return found


def prefix_of(layout: Layout) -> int:
    return padded(1 + -(-len(layout.parts) // 8))
