"""A group whose workers sit on several hosts, over links: every message under a key, every wait with a name.

What is between hosts by default. `--trusted` takes `SpreadGroup` instead, which authenticates nobody.
"""

import atexit
import os
import sys
from collections.abc import Sequence

from torch import Tensor

from shoal.cluster.board import Board
from shoal.cluster.group import Group, as_bytes, deadline_seconds
from shoal.cluster.links.allowance import allowance_from_environment
from shoal.cluster.links.book import Book
from shoal.cluster.links.door import Door
from shoal.cluster.links.gathering import Gathering
from shoal.cluster.links.handing_on import HandingOn
from shoal.cluster.links.mesh import Mesh
from shoal.cluster.membership.session import Steady

TRUSTED_VARIABLE = "SHOAL_TRUSTED"


class LinkedGroup(Group):
    """Workers that know each other by an address book."""

    store: object = None
    """Where the workers met, if they had to: worker 0 may be its host, so it lives as long as the group."""

    def __init__(self, run: str, book: Book, rank: int, door: Door, board: Board | None = None) -> None:
        self.rank, self.size, self.seat, self.session = rank, len(book), rank, Steady(rank, len(book))
        self.seconds = deadline_seconds()
        self.board = board or Board.private()
        self.board.enter(rank)
        self.mesh = Mesh(run, book, rank, door, self.board, allowance=allowance_from_environment())
        atexit.register(self.close)
        self.mesh.meet(self.seconds)

    def gather(self, data: bytes) -> list[bytes]:
        task = Gathering(data)
        self.mesh.submit(task)
        self.mesh.wait(task, self.seconds)
        return task.result

    def broadcast(self, tensors: Sequence[Tensor], givers: Sequence[str] = ()) -> None:
        root = self.giver(givers)
        for tensor in tensors:
            staged = tensor.detach().cpu().contiguous()
            task = HandingOn(as_bytes(staged).numpy(), root)
            self.mesh.submit(task)
            self.mesh.wait(task, self.seconds)
            if self.rank != root and staged.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(staged)

    def close(self) -> None:
        """Registered to run at the end: what this worker sent last is still on its way when the script is done."""
        atexit.unregister(self.close)
        self.mesh.close("failed" if getattr(sys, "last_value", None) is not None else "ended")


def trusted() -> bool:
    """Whether the user says that the network between the hosts is theirs alone."""
    return os.environ.get(TRUSTED_VARIABLE, "") not in ("", "0")
