"""The sum of two workers: partners send each other theirs and add up; a worker without a partner keeps its own.

One latency, and each sends its array once. Floating-point addition of two numbers commutes, so both get the same bits;
the sum over all workers is what it was. Used by `mix(butterfly)`, where the partner changes from step to step:

    step t of p = 4    0 <-> 1    2 <-> 3        t even: places that differ in bit 0
                       0 <-> 2    1 <-> 3        t odd: in bit 1
"""

from collections.abc import Sequence

from shoal.sync.engine.algorithms.base import DtypeArithmetic, SumTask, pieces
from shoal.transport.messages import Array, ChunkHeader, FramePayload, FrameRefused, pack
from shoal.transport.tasks import MeshView, Send


class PairSum(SumTask):
    """`step`: which partner it is; see `find_partner`."""

    kind = "pair"

    def __init__(self, leaving: Array, result: Array, arithmetic: DtypeArithmetic, step: int) -> None:
        super().__init__(leaving, result, arithmetic)
        self._step = step
        self._peer: int | None = None
        """Its rank."""

    @classmethod
    def sent_bytes(cls, size: int, workers: int, place: int) -> int:
        return size

    def begin(self, view: MeshView, send: Send) -> None:
        self._slices: Sequence[slice] = pieces(0, self.leaving.size, self.arithmetic.chunk)
        self._left = len(self._slices)
        partner = find_partner(self._step, view.place, view.size)
        if partner is None:
            self.result[:] = self.leaving
            self._left = 0
        else:
            self._peer = view.ranks[partner]
            for index, where in enumerate(self._slices):
                send(self._peer, 0, index, pack(self.leaving[where], self.arithmetic.name))
        if not self._left:
            self.done.set()

    def arrived(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        if sender != self._peer or chunk.phase != 0:
            raise FrameRefused(f"worker {sender} sends phase {chunk.phase} of a pair's sum that it has no part in")
        where = self.place(sender, chunk, self._slices)
        theirs = self.check(sender, payload, where.stop - where.start)
        self.arithmetic.total([self.leaving[where], theirs], self.result[where])
        self._left -= 1
        if not self._left:
            self.done.set()

    def missing(self) -> list[int]:
        return [self._peer] if self._peer is not None and self._left else []


def find_partner(step: int, place: int, workers: int) -> int | None:
    """Return the place of a worker's partner; None if it would be beyond the last, where p is no power of two."""
    if workers < 2:
        return None
    partner = place ^ 1 << step % (workers - 1).bit_length()
    return partner if partner < workers else None
