"""Butterfly all-reduce (recursive doubling): in round k, workers 2^k apart exchange their sums and add them up.

    round 0    0 <-> 1    2 <-> 3        sums of two
    round 1    0 <-> 2    1 <-> 3        sums of four, on all

⌈log2 p⌉ latencies, the fewest possible, and each worker sends log2 p arrays. Thakur, Rabenseifner & Gropp,
"Optimization of collective communication operations in MPICH", IJHPCA 2005; Zhao & Canny, "Butterfly mixing", SDM
2013, spreads the rounds over steps. Where p is no power of two, the workers beyond the largest one add theirs to a
partner's first and get the total from it last: two latencies more. Both partners of a round add the same two sums, and
addition of two floats commutes, so all get the same bits. A lost worker ends the task; it is made again among those
that are left. Do not use it for large arrays: the ring sends 2 (p-1)/p of one; nor for half precision, which would be
rounded in every round.
"""

import numpy as np

from shoal.sync.engine.algorithms.base import SumTask, pieces
from shoal.transport.messages import Array, ChunkHeader, FramePayload, FrameRefused, pack
from shoal.transport.tasks import MeshView, Send

FOLD = 0
"""The phase in which workers beyond the power of two send theirs; rounds follow from 1 on, and totals come last."""


class ButterflyAllReduce(SumTask):
    """Phase 0 folds workers beyond a power of two in; phases 1 to r are rounds; phase r+1 gives the folded theirs."""

    kind = "butterfly"

    @classmethod
    def sent_bytes(cls, size: int, workers: int, place: int) -> int:
        core = _core(workers)
        if place >= core:
            return size
        return size * (core.bit_length() - 1 + (place + core < workers))

    def begin(self, view: MeshView, send: Send) -> None:
        self._view, self._send = view, send
        core, place = _core(view.size), view.place
        self._rounds = core.bit_length() - 1
        self._folded = place >= core
        self._sources = self._sources_of(core)
        """By phase: whom this worker gets a sum from."""
        self._slices = pieces(0, self.leaving.size, self.arithmetic.chunk)
        self._phases = [FOLD if FOLD in self._sources else 1] * len(self._slices)
        """Of each piece: the phase whose sum it waits for."""
        self._early: dict[tuple[int, int], Array] = {}
        """Sums of phases that this worker has not come to, by piece and phase: a partner may be ahead."""
        self._left = len(self._slices)
        # sums build up in the result; what leaves is only read
        self.result[:] = self.leaving
        for index in range(len(self._slices)):
            if self._folded:
                self._send_sum(index, view.ranks[place - core], FOLD)
                self._phases[index] = self._rounds + 1
            elif FOLD not in self._sources:
                self._begin_round(index)
        if not self._left:
            self.done.set()

    def _sources_of(self, core: int) -> dict[int, int]:
        ranks, place = self._view.ranks, self._view.place
        if place >= core:
            return {self._rounds + 1: ranks[place - core]}
        found = {k + 1: ranks[place ^ (1 << k)] for k in range(self._rounds)}
        return found | ({FOLD: ranks[place + core]} if place + core < self._view.size else {})

    def _send_sum(self, index: int, peer: int, phase: int) -> None:
        self._send(peer, phase, index, pack(self.result[self._slices[index]], self.arithmetic.name))

    def arrived(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        if self._sources.get(chunk.phase) != sender:
            raise FrameRefused(f"worker {sender} sends phase {chunk.phase} of a butterfly to worker {self._view.rank}")
        where = self.place(sender, chunk, self._slices)
        self._early[chunk.index, chunk.phase] = self.check(sender, payload, where.stop - where.start)
        self._advance(chunk.index)

    def _advance(self, index: int) -> None:
        """Add up what has arrived of a piece, round by round."""
        while (array := self._early.pop((index, self._phases[index]), None)) is not None:
            out = self.result[self._slices[index]]
            if self._folded:
                out[:] = array
            else:
                np.add(out, array, out=out)
            self._phases[index] += 1
            self._begin_round(index)

    def _begin_round(self, index: int) -> None:
        phase = self._phases[index]
        if not self._folded and 1 <= phase <= self._rounds:
            self._send_sum(index, self._sources[phase], phase)
            return
        if not self._folded and FOLD in self._sources:  # the total is here: give it to the worker that was folded in
            self._send_sum(index, self._sources[FOLD], self._rounds + 1)
        self._left -= 1
        if not self._left:
            self.done.set()

    def missing(self) -> list[int]:
        # the training thread may ask before the communication thread has begun the task
        if not hasattr(self, "_left"):
            return []
        return sorted({self._sources[phase] for phase in self._phases if phase in self._sources})


def _core(workers: int) -> int:
    """Return the largest power of two that is at most `workers`."""
    return 1 << (workers.bit_length() - 1)
