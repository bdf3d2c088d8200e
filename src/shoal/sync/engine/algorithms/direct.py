"""Direct sum: every worker sends its whole array to all others and adds up for itself; one latency, (p-1) arrays.

The flat all-to-all of small messages: Thakur, Rabenseifner & Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 2005. All add up in order of rank, so all get the same bits. Do not use it for large
arrays, except between two workers: a worker sends p-1 arrays instead of 2 (p-1)/p.
"""

from shoal.sync.engine.algorithms.base import SumTask, pieces
from shoal.transport.messages import Array, ChunkHeader, FramePayload, FrameRefused, pack
from shoal.transport.tasks import MeshView, Send


class DirectSum(SumTask):
    """For arrays whose time on the link is less than a latency, and for two workers."""

    kind = "sum"

    @classmethod
    def sent_bytes(cls, size: int, workers: int, place: int) -> int:
        return (workers - 1) * size

    def begin(self, view: MeshView, send: Send) -> None:
        self._view = view
        self._slices = pieces(0, self.leaving.size, self.arithmetic.chunk)
        self._came: list[dict[int, Array]] = [{view.rank: self.leaving[where]} for where in self._slices]
        self._left = len(self._slices)
        for index, where in enumerate(self._slices):
            payload = pack(self.leaving[where], self.arithmetic.name)
            for peer in view.others:
                send(peer, 0, index, payload)
        if view.size == 1:
            self.result[:] = self.leaving
        if view.size == 1 or not self._left:
            self.done.set()

    def arrived(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        if chunk.phase:
            raise FrameRefused(f"worker {sender} sends phase {chunk.phase} of a sum that has one")
        where = self.place(sender, chunk, self._slices)
        came = self._came[chunk.index]
        came[sender] = self.check(sender, payload, where.stop - where.start)
        # not before all are here: adding in order of arrival would give each worker other bits
        if len(came) == self._view.size:
            self.arithmetic.total([came[rank] for rank in self._view.ranks], self.result[where])
            self._left -= 1
            if not self._left:
                self.done.set()

    def missing(self) -> list[int]:
        # the training thread may ask before the communication thread has begun the task
        if not hasattr(self, "_came"):
            return []
        return [rank for rank in self._view.others if any(rank not in came for came in self._came)]
