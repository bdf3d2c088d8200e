"""A group over a `torch.distributed` process group (gloo)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed has them, where mypy cannot see it

from shoal.core.errors import PeerLost
from shoal.groups.base import LARGEST_WORD, Check, WorkerGroup, as_bytes, deadline_seconds
from shoal.hosts.status_board import StatusBoard
from shoal.membership.session import FixedSession


class TorchGroup(WorkerGroup):
    """Workers that find each other through a store and communicate through gloo."""

    def __init__(self, store: Store, rank: int, size: int, board: StatusBoard | None = None) -> None:
        self.rank, self.size, self.slot, self.session = rank, size, rank, FixedSession(rank, size)
        self.seconds = deadline_seconds()
        self.store = store
        self.board = board or StatusBoard.private()
        self.board.enter(rank)
        with self._named("meeting the others"):
            self.process_group = gloo(PrefixStore("control", store), rank, size, self.seconds)

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(data)
        with self._named("a gather"):
            self.process_group.allreduce([lengths]).wait()
        # gloo's all-gather wants equal sizes, and at least one byte.
        longest = max(1, int(lengths.max()))
        mine = torch.zeros(longest, dtype=torch.uint8)
        if data:
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        theirs = [torch.empty_like(mine) for _ in range(self.size)]
        with self._named("a gather"):
            self.process_group.allgather([theirs], [mine]).wait()
        return [t[:n].numpy().tobytes() for t, n in zip(theirs, lengths.tolist(), strict=True)]

    def broadcast(self, tensors: Sequence[Tensor], givers: Sequence[str] = ()) -> None:
        root = self.giver(givers)
        for tensor in tensors:
            # gloo here has CPU tensors only, and sends memory in one run.
            staged = tensor.detach().cpu().contiguous()
            if staged.numel():
                with self._named("a broadcast"):
                    self.process_group.broadcast(as_bytes(staged), root).wait()
            if self.rank != root and staged.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(staged)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Replace gloo's long messages about closed connections and timeouts by one line that names the worker."""
        try:
            yield
        except RuntimeError as error:
            reason = (str(error).splitlines() or ["no reason given"])[0][:120]
            raise PeerLost(
                f"worker {self.rank} stops: {what} failed; another worker or the network is gone ({reason})"
            ) from None

    def close(self) -> None:
        pass


def gloo(store: Store, rank: int, size: int, seconds: float) -> dist.ProcessGroup:
    """Make a gloo process group that leaves torch's default group unset."""
    return cast(dist.ProcessGroup, dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=seconds)))
