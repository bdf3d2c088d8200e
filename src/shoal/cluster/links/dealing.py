"""Each worker has a piece for every other: all leave at once, straight to whom they are for.

0:  a b c          0:  a d g
1:  d e f    ──>   1:  b e h        a sender's pieces are of one length, so that a chunk's message tells it
2:  g h i          2:  c f i
"""

import numpy as np
import numpy.typing as npt

from shoal.cluster.links.frames import CHUNK, pack
from shoal.cluster.links.gathering import Gathering, chunks
from shoal.cluster.links.refused import Refused
from shoal.cluster.links.task import Send, View


class Dealing(Gathering):
    """A row of `pieces` for each worker, by rank; `result` holds what everybody had for this one, by rank."""

    kind = "deal"

    def __init__(self, pieces: npt.NDArray[np.uint8], limit: int) -> None:
        super().__init__(b"", limit)
        self.pieces, self.total = pieces, pieces.shape[1]

    def begin(self, view: View, send: Send) -> None:
        if view.size != len(self.pieces) or self.total > self.limit:
            raise Refused(
                f"{len(self.pieces)} pieces of {self.total} bytes among {view.size} workers; "
                f"there is one for each, of at most {self.limit}"
            )
        self._ranks, self._rank = view.ranks, view.rank
        self._wanted = dict.fromkeys(view.others, 1)
        self.data = bytearray(self.pieces[view.place])
        for index in range(chunks(self.total)):  # one for each in turn, so that nobody waits for the end
            for place, peer in enumerate(view.ranks):
                if peer != view.rank:
                    send(peer, 0, index, pack(self.pieces[place, index * CHUNK : (index + 1) * CHUNK], "uint8"))
        if not view.others:
            self.done.set()
