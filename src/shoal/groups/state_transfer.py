"""How the state of a run gets from a member that trains to newcomers: through memory on one host, else over links."""

import contextlib
import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from shoal.core.disk import DISK
from shoal.core.errors import ShoalError
from shoal.hosts.status_board import StatusBoard, WorkerState
from shoal.membership.session import seat_of
from shoal.membership.view import MembershipView
from shoal.transport.collectives import StateReceive, StateSend
from shoal.transport.mesh import LinkMesh

LARGEST = 1 << 34
"""Bytes of a state that are taken at the most."""


class StateTransfer(ABC):
    """Of one worker."""

    @abstractmethod
    def give(self, view: MembershipView, newcomers: Sequence[str], data: bytes) -> None:
        """Once to each of them in a view."""

    @abstractmethod
    def take(self, view: MembershipView, donor: str) -> bytes | bytearray | None: ...

    def release(self) -> None:  # noqa: B027  (there may be nothing to do)
        """After every step of the donor: give back what newcomers do not need any more."""


class MemoryStateTransfer(StateTransfer):
    """On one host: anonymous memory of the donor, which newcomers open through its entry in /proc.

    No file: a disk that is full must not keep a lost worker from being replaced. The memory is sealed when it is
    complete, so that nobody reads half of it, and given back when all newcomers have read it.
    """

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._memory = -1
        self._newcomers: list[int] = []

    def give(self, view: MembershipView, newcomers: Sequence[str], data: bytes) -> None:
        self.close()  # newcomers of earlier views have theirs
        self._newcomers = [seat_of(member) for member in newcomers]
        self._memory = os.memfd_create(_memory_name(view), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        DISK.write(self._memory, data)
        fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)

    def take(self, view: MembershipView, donor: str) -> bytes | None:
        pid = int(self._board.read(seat_of(donor))["pid"])
        try:
            with open(_find_memory(pid, _memory_name(view)), "rb") as file:
                sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
                return file.read(LARGEST) if sealed else None
        except (FileNotFoundError, ProcessLookupError):  # not given yet, or the donor has ended
            return None
        except PermissionError as error:
            raise ShoalError(f"cannot read the state that {donor} gives (pid {pid}): {error}") from None

    def release(self) -> None:
        if self._memory >= 0 and all(self._board.state(seat) > WorkerState.starting for seat in self._newcomers):
            self.close()

    def close(self) -> None:
        """Loader processes may have inherited the descriptor: closing it alone would not free the memory."""
        if self._memory >= 0:
            os.ftruncate(self._memory, 0)
            os.close(self._memory)
            self._memory = -1


def _memory_name(view: MembershipView) -> str:
    return f"shoal-state-{view.generation}"


def _find_memory(pid: int, name: str) -> str:
    """Where a process has memory of this name open; FileNotFoundError if it has none."""
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"{folder}/{number}") == f"/memfd:{name} (deleted)":
                return f"{folder}/{number}"
    raise FileNotFoundError(f"{folder} has no {name}")


class LinkStateTransfer(StateTransfer):
    """Straight from the donor's memory to the newcomers'."""

    def __init__(self, mesh: LinkMesh) -> None:
        self.mesh = mesh
        self._taking: tuple[MembershipView, StateReceive] | None = None

    def give(self, view: MembershipView, newcomers: Sequence[str], data: bytes) -> None:
        # the first of each newcomer's in its first view, however many are given something here
        self.mesh.submit(StateSend(data, [seat_of(member) for member in newcomers]), number=0)

    def take(self, view: MembershipView, donor: str) -> bytearray | None:
        if self._taking is None or self._taking[0] != view:
            self._taking = (view, StateReceive(seat_of(donor), LARGEST))
            self.mesh.submit(self._taking[1], number=0)
        task = self._taking[1]
        return task.items[0] if task.done.is_set() and task.error is None else None
