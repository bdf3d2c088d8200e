"""Tree all-reduce: sums go up a binary tree to its root, and the total comes down again.

              0              place i sends to (i-1)//2; its children are 2i+1 and 2i+2
            /   \\            up:    own + left child's + right child's sum, piece by piece
           1     2           down:  the root's total, handed on as soon as it arrives
          / \\   / \\
         3   4 5   6

The same sum runs over any tree: a chain (each place's parent is the one before it) and a star (everybody's parent is
place 0, a central server) are here too, for hosts that are wired like that. Wang et al., "A parameter communication
optimization strategy for distributed machine learning", APSys 2014, let users choose such topologies, and any tree that
is given by its edges.

At most 2 ⌈log2 p⌉ latencies, and a worker sends at most three arrays. Agarwal et al., "A reliable effective terascale
linear learning system", JMLR 2014; Iandola et al., "FireCaffe", CVPR 2016. Only the root has the total and hands it
on, so all get the same bits. A lost worker ends the task; it is made again over the tree of those that are left. Do not
use it for large arrays: the ring sends less; nor for half precision, which would be rounded at every level.
"""

from collections import Counter
from functools import lru_cache
from typing import ClassVar

from shoal.core.tree_edges import Edges, read_edges, tree_over
from shoal.sync.engine.algorithms.base import SumTask, pieces
from shoal.transport.messages import Array, ChunkHeader, FramePayload, FrameRefused, pack
from shoal.transport.tasks import MeshView, Send

UP, DOWN = 0, 1


class TreeAllReduce(SumTask):
    """Phase 0: partial sums go up; phase 1: totals come down."""

    kind = "tree"

    @classmethod
    def sent_bytes(cls, size: int, workers: int, place: int) -> int:
        return size * (bool(place) + len(cls.children(place, workers)))

    @staticmethod
    def parent(place: int) -> int:
        """Return where the sums of a place go that is not the root."""
        return (place - 1) // 2

    @staticmethod
    def children(place: int, workers: int) -> list[int]:
        """Return whose sums come to a place, in order."""
        return [child for child in (2 * place + 1, 2 * place + 2) if child < workers]

    def begin(self, view: MeshView, send: Send) -> None:
        self._view, self._send = view, send
        self._parent, self._children = self._find_neighbours(view)
        self._slices = pieces(0, self.leaving.size, self.arithmetic.chunk)
        self._came: list[dict[int, Array]] = [{} for _ in self._slices]
        self._left = len(self._slices)
        if not self._left:
            self.done.set()
        if not self._children:
            for index in range(len(self._slices)):
                self._add_up(index)

    def _find_neighbours(self, view: MeshView) -> tuple[int | None, list[int]]:
        """Return where this worker's sums go, and whose come here."""
        parent = view.ranks[self.parent(view.place)] if view.place else None
        return parent, [view.ranks[place] for place in self.children(view.place, view.size)]

    def arrived(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        known = self._children if chunk.phase == UP else [self._parent]
        if chunk.phase not in (UP, DOWN) or sender not in known:
            raise FrameRefused(f"worker {sender} sends phase {chunk.phase} of a tree to worker {self._view.rank}")
        where = self.place(sender, chunk, self._slices)
        array = self.check(sender, payload, where.stop - where.start)
        if chunk.phase == DOWN:
            self._take_total(chunk.index, array, payload)
            return
        self._came[chunk.index][sender] = array
        if len(self._came[chunk.index]) == len(self._children):
            self._add_up(chunk.index)

    def _add_up(self, index: int) -> None:
        """The sums of all children are here: send this worker's up, or the total down."""
        where = self._slices[index]
        # by place, whatever the order of arrival: the bits must not depend on it
        parts = [self.leaving[where], *(self._came[index][child] for child in self._children)]
        if len(parts) > 1:
            self.arithmetic.total(parts, self.result[where])
        else:
            self.result[where] = parts[0]
        # arrays of children are views of received frames: free them
        self._came[index].clear()
        payload = pack(self.result[where], self.arithmetic.name)
        if self._parent is None:
            self._take_total(index, self.result[where], payload)
        else:
            self._send(self._parent, UP, index, payload)

    def _take_total(self, index: int, array: Array, payload: FramePayload) -> None:
        self.result[self._slices[index]] = array
        for child in self._children:
            self._send(child, DOWN, index, payload)
        self._left -= 1
        if not self._left:
            self.done.set()

    def missing(self) -> list[int]:
        """Return the children whose sums are late, or the parent if this worker's subtree is complete."""
        # the training thread may ask before the communication thread has begun the task
        if not hasattr(self, "_left"):
            return []
        came = Counter(sender for sender, phase, _ in self._seen if phase == UP)
        late = [child for child in self._children if came[child] < len(self._slices)]
        return late or ([] if self._parent is None else [self._parent])


class ChainAllReduce(TreeAllReduce):
    """Each place has one child, the next one: 2 (p-1) latencies, and nobody sends more than two arrays."""

    kind = "chain"

    @staticmethod
    def parent(place: int) -> int:
        return place - 1

    @staticmethod
    def children(place: int, workers: int) -> list[int]:
        return [place + 1] if place + 1 < workers else []


class StarAllReduce(TreeAllReduce):
    """Place 0 adds up for all, as one parameter server would: two latencies, and its link carries all the bytes."""

    kind = "star"

    @staticmethod
    def parent(place: int) -> int:
        return 0

    @staticmethod
    def children(place: int, workers: int) -> list[int]:
        return [] if place else list(range(1, workers))


class EdgeTreeAllReduce(TreeAllReduce):
    """Along the edges that a user has written; see `core/tree_edges.py` for what becomes of lost workers."""

    kind = "edges"
    edges: ClassVar[Edges]

    @classmethod
    def sent_bytes(cls, size: int, workers: int, place: int) -> int:
        parents = tree_over(cls.edges, range(workers))
        return size * (bool(place) + sum(parent == place for parent in parents.values()))

    def _find_neighbours(self, view: MeshView) -> tuple[int | None, list[int]]:
        parents = tree_over(self.edges, view.ranks)
        return parents[view.rank], [rank for rank in view.ranks if parents[rank] == view.rank]


@lru_cache(maxsize=64)
def edge_tree(text: str) -> type[EdgeTreeAllReduce]:
    """Return the sum along edges such as `0-1:1-2`."""
    return type("EdgeTreeAllReduce", (EdgeTreeAllReduce,), {"edges": read_edges(text)})
