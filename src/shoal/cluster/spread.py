"""A group whose workers may sit on several hosts, over a `torch.distributed` process group.

Used where the workers were started by torchrun on more than one machine. The process group is our own and not the
default one, so the script may still call `init_process_group` itself. It authenticates nobody: for trusted networks.
"""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.cluster.board import Board
from shoal.cluster.group import Group, as_bytes, deadline_seconds


class SpreadGroup(Group):
    """Workers that meet through a store and talk through gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.rank, self.size, self.seconds = rank, size, deadline_seconds()
        self.store = store
        self.board = Board.private()
        self.board.enter(rank)
        self.process_group = gloo(dist.PrefixStore("control", store), rank, size, self.seconds)

    def gather(self, data: bytes) -> list[bytes]:
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(data)
        self.process_group.allreduce([lengths]).wait()
        longest = max(1, int(lengths.max()))
        mine = torch.zeros(longest, dtype=torch.uint8)
        if data:
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        theirs = [torch.empty_like(mine) for _ in range(self.size)]
        self.process_group.allgather([theirs], [mine]).wait()
        return [t[:n].numpy().tobytes() for t, n in zip(theirs, lengths.tolist(), strict=True)]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            staged = tensor.detach().cpu().contiguous()
            if staged.numel():
                self.process_group.broadcast([as_bytes(staged)], 0).wait()
            if self.rank != 0 and staged.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(staged)

    def close(self) -> None:
        pass


def gloo(store: dist.Store, rank: int, size: int, seconds: float) -> dist.ProcessGroup:
    """A gloo process group that is nobody's default."""
    return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=seconds))
