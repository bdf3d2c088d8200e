"""The workers of a run as one of them sees them: its rank, their number, and small collectives among all.

`gather` and `broadcast` are the control plane: initial weights, layouts, sample counts. Gradients travel through the
exchange. Every member must make the same calls in the same order; each call has a deadline.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from shoal.core.errors import PeerLost, UsageError
from shoal.groups.host_workers import CopyHost
from shoal.groups.state_streaming import StateStreamClient, StateStreamServer
from shoal.groups.state_transfer import MemoryStateTransfer, StateTransfer
from shoal.hosts.status_board import StatusBoard
from shoal.membership.session import FixedSession, MembershipSession
from shoal.transport.messenger import Messenger

DEADLINE_VARIABLE = "SHOAL_DEADLINE"
DEADLINE_SECONDS = 600.0
# Bounds what one remote worker can make all others hold.
LARGEST_WORD = 16 << 20
"""Bytes one worker may gather at a time, unless a caller sets a limit: enough for layer names, samples and figures."""
Check = Callable[[bytes], object]


class GiverLost(PeerLost):
    """Every worker that had what the others need is lost."""


class WorkerGroup(ABC):
    """The workers of the current view. Not thread-safe: one thread of each worker uses it."""

    rank: int
    """This worker's position in the view; it changes with the view."""
    size: int
    slot: int
    """This worker's number on the status board and in the record; it never changes."""
    session: MembershipSession
    board: StatusBoard
    seconds: float
    """Seconds that any wait for a peer may take."""
    remote: bool = False
    """Whether this worker is on another machine than the run began on, and so does not see the run's folder."""
    remote_count: int = 0
    """How many members of the view are remote; they are always the last ones."""

    @abstractmethod
    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        """Return the `data` of all workers, in order of rank, on every worker; each has at most `limit` bytes.

        `check` raises for data that no honest worker sends. If it is a remote worker's, that worker is evicted, and the
        others gather again, so that no worker uses it.
        """

    def gather_inside(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        """Gather inside an operation that the caller has begun and completes; raise ViewEnded if members are lost."""
        return self.gather(data, limit, check)

    @abstractmethod
    def broadcast(self, tensors: Sequence[Tensor], givers: Sequence[str] = ()) -> None:
        """Overwrite `tensors` in place with those of the donor, see `giver`."""

    def giver(self, members: Sequence[str] = ()) -> int:
        """Return the rank of the first of `members` that is in the view; 0 if none was named."""
        view = self.session.view
        here = [view.rank(member) for member in members if member in view]
        if members and not here:
            raise GiverLost(f"worker {self.rank} stops: all that know the state ({', '.join(members)}) are lost")
        return here[0] if here else 0

    @cached_property
    def transfer(self) -> StateTransfer:
        """Return how newcomers get the state: by default through memory of this host."""
        return MemoryStateTransfer(self.board)

    @property
    def messenger(self) -> Messenger:
        """Messages between the members, whatever the view."""
        raise UsageError("members of this run exchange no messages: they meet by torch.distributed or are alone")

    @property
    def copy_host(self) -> CopyHost:
        """The workers of this host, that may share one copy of a model; their memory."""
        raise UsageError(
            "workers of this run meet by torch.distributed and share no memory, so they cannot have one copy of the "
            "parameters; start them with shoal run, without --trusted, or write local(16)"
        )

    def datagram_hosts(self) -> dict[str, str]:
        """Return, for each member of the view, the IP address at which its datagrams arrive."""
        raise UsageError(
            "members of this run exchange no datagrams: they meet by torch.distributed; start them with shoal run, "
            "without --trusted, or write local(16)"
        )

    def hosts_of_members(self) -> dict[str, str]:
        """Return a name of the host of each member of the view; nothing where members do not change."""
        return {}

    def link_estimates(self) -> dict[int, tuple[float | None, float | None]]:
        """Return, for each peer whose link has estimates, bytes a second and seconds of a round trip."""
        return {}

    def state_stream_server(self) -> StateStreamServer | None:
        """Return what streams this worker's state to newcomers before they enter; None if entering is fast anyway."""
        return None

    def state_stream_client(self) -> StateStreamClient | None:
        """Return what receives the state that a member streams to this newcomer; None if no member does."""
        return None

    def begin_plan(self, number: int) -> None:  # noqa: B027
        """Let engines of plan `number` take their memory and channels now: the same ones on all workers."""

    def free_old_plans(self) -> None:  # noqa: B027
        """Free the memory of earlier plans, once all members have begun the current one."""

    @abstractmethod
    def close(self) -> None:
        """Free memory and connections; the group must not be used afterwards."""


class SingleWorkerGroup(WorkerGroup):
    """A world of one worker, the null member of the family: what `python train.py` gets."""

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
    """Return how long a wait may take: $SHOAL_DEADLINE, or ten minutes."""
    text = os.environ.get(DEADLINE_VARIABLE, "")
    try:
        seconds = float(text) if text else DEADLINE_SECONDS
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise UsageError(f"{DEADLINE_VARIABLE}={text!r} is not a number of seconds; unset it or give one above 0")
    return seconds


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a contiguous CPU tensor as a flat tensor of bytes that shares its memory."""
    flat = tensor.detach().view(-1) if tensor.dim() else tensor.detach().reshape(1)
    return flat.view(torch.uint8)
