"""Reduce-scatter, then all-gather: every worker owns a part, adds up what all send it of that part, and returns it.

Each half is one direct round: two latencies and 2 (p-1)/p of the bytes; Rabenseifner, "Optimization of collective
reduction operations", ICCS 2004, has both halves. Because only the owner adds up, half precision is summed in float32
and rounded once. Do not use it for large float32 arrays: p-1 streams meet on each link, where the ring has one.
"""

from shoal.sync.engine.algorithms.base import SumTask, part, pieces
from shoal.transport.messages import Array, ChunkHeader, FramePayload, FrameRefused, pack
from shoal.transport.tasks import MeshView, Send

COLLECT, RETURN = 0, 1


class ReduceScatterGather(SumTask):
    """Phase 0: pieces go to their owner; phase 1: sums come back. A piece is known by owner and index."""

    kind = "owners"

    def begin(self, view: MeshView, send: Send) -> None:
        self._view, self._send = view, send
        numel, chunk = self.leaving.size, self.arithmetic.chunk
        self._slices = {r: pieces(*part(numel, view.size, i), chunk) for i, r in enumerate(view.ranks)}
        mine = self._slices[view.rank]
        self._came: list[dict[int, Array]] = [{view.rank: self.leaving[where]} for where in mine]
        self._order = view.ranks[view.place :] + view.ranks[: view.place]
        """The order of adding up: the owner first, as in the ring, so that both give the same bits."""
        self._left = {rank: len(slices) for rank, slices in self._slices.items()}
        longest = max(map(len, self._slices.values()))
        for index in range(longest):  # one piece for each in turn, so that no owner waits for the end
            for peer in view.others:
                if index < len(self._slices[peer]):
                    send(peer, COLLECT, index, pack(self.leaving[self._slices[peer][index]], self.arithmetic.name))
        self._check_done()

    def arrived(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        view = self._view
        if chunk.phase not in (COLLECT, RETURN):
            raise FrameRefused(f"worker {sender} sends phase {chunk.phase} of a sum by owners, which has two")
        owner = view.rank if chunk.phase == COLLECT else sender
        where = self.place(sender, chunk, self._slices[owner])
        array = self.check(sender, payload, where.stop - where.start)
        if chunk.phase == RETURN:
            self.result[where] = array
            self._left[owner] -= 1
        else:
            came = self._came[chunk.index]
            came[sender] = array
            if len(came) < view.size:
                return
            self.arithmetic.total([came[rank] for rank in self._order], self.result[where])
            self._left[owner] -= 1
            sum_ = pack(self.result[where], self.arithmetic.name)
            for peer in view.others:
                self._send(peer, RETURN, chunk.index, sum_)
        self._check_done()

    def _check_done(self) -> None:
        if not any(self._left.values()):
            self.done.set()

    def missing(self) -> list[int]:
        # the training thread may ask before the communication thread has begun the task
        if not hasattr(self, "_left"):
            return []
        late = {rank for came in self._came for rank in self._view.others if rank not in came}
        return sorted(late | {rank for rank, left in self._left.items() if left and rank != self._view.rank})
