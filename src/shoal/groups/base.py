"""The workers of a run as one of them sees them: who am I, how many are we, and small things said to all.

`gather` and `broadcast` are the control plane: initial weights, layouts, sample counts. Gradients take the exchange's
own way. Every member must make the same calls in the same order; each call has a deadline.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from shoal.core.errors import PeerLost, UsageError
from shoal.groups.state_streaming import StateStreamClient, StateStreamServer
from shoal.groups.state_transfer import MemoryStateTransfer, StateTransfer
from shoal.hosts.status_board import StatusBoard
from shoal.membership.session import FixedSession, MembershipSession

DEADLINE_VARIABLE = "SHOAL_DEADLINE"
DEADLINE_SECONDS = 600.0
LARGEST_WORD = 16 << 20
"""Bytes one worker says to all at a time, unless a caller knows better: names of all layers, samples, figures."""
Check = Callable[[bytes], object]


class GiverLost(PeerLost):
    """All that had something the others need are lost."""


class WorkerGroup(ABC):
    """The workers of one view after the other. Not thread-safe: one thread of each worker uses it."""

    rank: int
    """Among the members of the view; changes with it."""
    size: int
    slot: int
    """On the board and in the record; never changes."""
    session: MembershipSession
    board: StatusBoard
    seconds: float
    """How long any wait for a peer may take."""
    remote: bool = False
    """Whether this worker is of another machine than the one the run began on: it does not see the run's folder."""
    remote_count: int = 0
    """How many of the view are, always the last ones."""

    @abstractmethod
    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        """Everybody's `data`, in order of rank, on every worker; none is of more than `limit` bytes.

        `check` raises for what no honest worker says. A remote worker's is then not taken in by anybody: it is
        evicted, and the others gather again.
        """

    def gather_inside(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        """As `gather`, inside an operation that the caller has begun and completes; ViewEnded if members are lost."""
        return self.gather(data, limit, check)

    @abstractmethod
    def broadcast(self, tensors: Sequence[Tensor], givers: Sequence[str] = ()) -> None:
        """Overwrite `tensors` in place with those of the giver: see `giver`."""

    def giver(self, members: Sequence[str] = ()) -> int:
        """The rank of the first of `members` that is in the view; worker 0 if none was named."""
        view = self.session.view
        here = [view.rank(member) for member in members if member in view]
        if members and not here:
            raise GiverLost(f"worker {self.rank} stops: all that know the state ({', '.join(members)}) are lost")
        return here[0] if here else 0

    @cached_property
    def transfer(self) -> StateTransfer:
        """How newcomers get the state: by default through memory of this host."""
        return MemoryStateTransfer(self.board)

    def link_estimates(self) -> dict[int, tuple[float | None, float | None]]:
        """Peer -> (bytes a second, seconds of a round trip), where links to it estimate them."""
        return {}

    def state_stream_server(self) -> StateStreamServer | None:
        """Streams this worker's state to newcomers before they enter; None where the entry is fast enough."""
        return None

    def state_stream_client(self) -> StateStreamClient | None:
        """Receives the state that a member streams to this newcomer; None where no member does."""
        return None

    def begin_plan(self, number: int) -> None:  # noqa: B027
        """Let engines of plan `number` take memory and channels from here on: the same on all workers of that plan."""

    def free_old_plans(self) -> None:  # noqa: B027
        """All members have begun the plan: give back the memory of those before."""

    @abstractmethod
    def close(self) -> None:
        """Give back memory and connections; the group is not used afterwards."""


class SingleWorkerGroup(WorkerGroup):
    """A world of one: the null member, and what `python train.py` gets."""

    def __init__(self) -> None:
        self.rank, self.size, self.slot, self.session = 0, 1, 0, FixedSession(0, 1)
        self.board, self.seconds = StatusBoard.private(), deadline_seconds()
        self.board.enter(0)

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return [data]

    def broadcast(self, tensors: Sequence[Tensor], givers: Sequence[str] = ()) -> None:
        pass

    def close(self) -> None:
        pass


def deadline_seconds() -> float:
    """How long a wait may take: $SHOAL_DEADLINE or ten minutes."""
    text = os.environ.get(DEADLINE_VARIABLE, "")
    try:
        seconds = float(text) if text else DEADLINE_SECONDS
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise UsageError(f"{DEADLINE_VARIABLE}={text!r} is not a number of seconds; unset it or give one above 0")
    return seconds


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor on the CPU as a flat tensor of bytes (shared, not copied)."""
    flat = tensor.detach().view(-1) if tensor.dim() else tensor.detach().reshape(1)
    return flat.view(torch.uint8)
