"""Ring all-reduce: each worker sends to the next one only, and every link carries 2 (p-1)/p of the bytes.

Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009. Parts
travel in pieces that are passed on as soon as they arrive, so no link waits for a whole part.

    part k:  k ──> k+1 ──> … ──> k-1     hops 0 … p-2: each worker adds its own; the last has the sum
             k-1 ──> k ──> … ──> k-2     hops p-1 … 2p-3: each worker copies the sum

Each part is added up along one path, so all get the same bits. Do not use it for small arrays (2 (p-1) latencies), nor
for half precision, which would be rounded at every hop.
"""

import numpy as np

from shoal.sync.engine.algorithms.base import SumTask, part, pieces
from shoal.transport.messages import ChunkHeader, FramePayload, FrameRefused, pack
from shoal.transport.tasks import MeshView, Send


class RingAllReduce(SumTask):
    """The phase of a chunk is its hop; hop h from place i carries part (i - h) mod p."""

    kind = "ring"

    def begin(self, view: MeshView, send: Send) -> None:
        self._view, self._send = view, send
        numel, chunk = self.leaving.size, self.arithmetic.chunk
        self._slices = [pieces(*part(numel, view.size, i), chunk) for i in range(view.size)]
        self._left = sum(map(len, self._slices))
        for index, where in enumerate(self._slices[view.place]):
            send(view.after, 0, index, pack(self.leaving[where], self.arithmetic.name))
        if not self._left:
            self.done.set()

    def arrived(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        view, hop = self._view, chunk.phase
        if sender != view.before or hop > 2 * view.size - 3:
            raise FrameRefused(f"worker {sender} sends hop {hop} of a ring of {view.size} to worker {view.rank}")
        where = self.place(sender, chunk, self._slices[(view.place - 1 - hop) % view.size])
        array = self.check(sender, payload, where.stop - where.start)
        if hop < view.size - 1:
            np.add(array, self.leaving[where], out=array)  # in place: the sum leaves from the memory it came in
            payload = payload.changed()
        if hop < 2 * view.size - 3:
            self._send(view.after, hop + 1, chunk.index, payload)
        # the last addition, or a copy of the sum that it made
        if hop >= view.size - 2:
            self.result[where] = array
            self._left -= 1
            if not self._left:
                self.done.set()

    def missing(self) -> list[int]:
        # the training thread may ask before the communication thread has begun the task
        return [self._view.before] if hasattr(self, "_view") else []
