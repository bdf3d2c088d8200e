"""A group over MPI: `mpirun -n 4 python train.py`, with mpi4py (`pip install 'shoal[mpi]'`).

Gradients and the control plane use MPI's own collectives, as fast as a cluster's MPI drives its network. Do not use it
where a worker may be lost or the network is shared: MPI neither authenticates nor encrypts, and ends all ranks when one
is lost. `mpirun … shoal run --on mpi` uses Shoal's own links instead.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.core.clock import Deadline
from shoal.core.errors import PeerLost, UsageError
from shoal.groups.base import deadline_seconds
from shoal.groups.process_group import TorchGroup
from shoal.hosts.status_board import StatusBoard
from shoal.membership.session import FixedSession

PAUSE, SPINS = 0.0001, 50
"""Seconds between two polls of a collective, after this many polls without a pause."""
ROUNDED = (torch.float16, torch.bfloat16)
"""Dtypes that MPI cannot sum: they are summed in float32 and rounded once."""


class MpiWork:
    """A collective under way. MPI makes progress only while it is polled."""

    def __init__(self, request: Any, seconds: float, then: Callable[[], object] | None = None) -> None:
        """`then` is called once, when the collective is done."""
        self._request, self._seconds, self._then, self._done = request, seconds, then, False

    def is_completed(self) -> bool:
        if not self._done and self._request.Test():
            self._done = True
            if self._then is not None:
                self._then()
        return self._done

    def wait(self) -> bool:
        """Wait; after the deadline raise RuntimeError, as torch's own process groups do."""
        deadline, looks = Deadline.after(self._seconds), 0
        while not self.is_completed():
            looks += 1
            if deadline.expired:
                raise RuntimeError(f"a collective of MPI was not done within {self._seconds:.0f} s")
            # MPI has no wait with a deadline, so it is polled.
            if looks > SPINS:
                time.sleep(PAUSE)
        return True


class MpiProcessGroup:
    """The collectives of torch.distributed that Shoal uses, over MPI, on CPU tensors."""

    def __init__(self, communicator: Any, seconds: float) -> None:
        """All ranks must make their groups in the same order, because each gets a communicator of its own."""
        # A communicator of its own keeps collectives of engines from matching those of others that overlap them.
        self._communicator, self._seconds = communicator.Dup(), seconds

    def size(self) -> int:
        return int(self._communicator.Get_size())

    def rank(self) -> int:
        return int(self._communicator.Get_rank())

    def allreduce(self, tensors: Sequence[Tensor]) -> MpiWork:
        from mpi4py import MPI

        (tensor,) = tensors
        staged = tensor.float() if tensor.dtype in ROUNDED else tensor
        request = self._communicator.Iallreduce(MPI.IN_PLACE, staged.numpy())
        return self._work(request, None if staged is tensor else lambda: tensor.copy_(staged))

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> MpiWork:
        (into,), (tensor,) = outputs, inputs
        # MPI wants one buffer for all, torch's interface has one for each rank.
        everything = torch.empty(len(into), *tensor.shape, dtype=tensor.dtype)
        kept = tensor.contiguous()
        request = self._communicator.Iallgather(kept.numpy(), everything.numpy())
        return self._work(request, lambda: [place.copy_(come) for place, come in zip(into, everything, strict=True)])

    def broadcast(self, tensor: Tensor, root: int) -> MpiWork:
        return self._work(self._communicator.Ibcast(tensor.numpy(), root))

    def alltoall_base(self, output: Tensor, source: Tensor, _out: Sequence[int], _in: Sequence[int]) -> MpiWork:
        """Scatter the sum in equal pieces."""
        return self._work(self._communicator.Ialltoall(source.numpy(), output.numpy()))

    def _work(self, request: Any, then: Callable[[], object] | None = None) -> MpiWork:
        return MpiWork(request, self._seconds, then)


class MpiGroup(TorchGroup):
    """All ranks that mpirun has started."""

    def __init__(self, communicator: Any) -> None:
        rank, size = int(communicator.Get_rank()), int(communicator.Get_size())
        self.rank, self.size, self.slot, self.session = rank, size, rank, FixedSession(rank, size)
        self.seconds, self.communicator = deadline_seconds(), communicator
        self.board = StatusBoard.private()
        self.board.enter(rank)
        self.process_group = self.make_process_group()

    def make_process_group(self) -> dist.ProcessGroup:
        """Return another process group, for an engine; all ranks must ask for it."""
        return cast(dist.ProcessGroup, MpiProcessGroup(self.communicator, self.seconds))


def join_ranks(size: int) -> MpiGroup:
    """The group of `mpirun`, which has started `size` ranks."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        raise UsageError(
            f"mpirun has started {size} ranks of this script, and mpi4py cannot be used ({error}); "
            "pip install 'shoal[mpi]', or type mpirun … shoal run --on mpi train.py"
        ) from None
    communicator = MPI.COMM_WORLD
    if communicator.Get_size() != size:
        raise PeerLost(f"mpi4py sees {communicator.Get_size()} of {size} ranks; is it built for another MPI?")
    return MpiGroup(communicator)
