"""How the state of a run gets from a member that trains to those that come later.

    donor       transfer.give(view, newcomers, data)      never waits for them
    newcomer    transfer.take(view, donor)                None as long as it is not there; asked again and again

On one host through memory, between hosts over links. Nobody needs it after the newcomers have it.
"""

import contextlib
import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from shoal.cluster.board import Board, State
from shoal.cluster.links.bequest import Giving, Taking
from shoal.cluster.links.mesh import Mesh
from shoal.cluster.membership.session import seat_of
from shoal.cluster.membership.view import View
from shoal.core.disk import DISK
from shoal.core.errors import ShoalError

LARGEST = 1 << 34
"""Bytes of a state that are taken at the most."""


class Transfer(ABC):
    """Of one worker."""

    @abstractmethod
    def give(self, view: View, newcomers: Sequence[str], data: bytes) -> None:
        """Once to each of them in a view."""

    @abstractmethod
    def take(self, view: View, donor: str) -> bytes | bytearray | None: ...

    def release(self) -> None:  # noqa: B027  (there may be nothing to do)
        """After every step of the donor: give back what newcomers do not need any more."""


class ByMemory(Transfer):
    """On one host: anonymous memory of the donor, which newcomers open through its entry in /proc.

    No file: a disk that is full must not keep a lost worker from being replaced. The memory is sealed when it is
    complete, so that nobody reads half of it, and given back when all newcomers have read it.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._memory = -1
        self._newcomers: list[int] = []

    def give(self, view: View, newcomers: Sequence[str], data: bytes) -> None:
        self.close()  # newcomers of earlier views have theirs
        self._newcomers = [seat_of(member) for member in newcomers]
        self._memory = os.memfd_create(_memory_name(view), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        DISK.write(self._memory, data)
        fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)

    def take(self, view: View, donor: str) -> bytes | None:
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
        if self._memory >= 0 and all(self._board.state(seat) > State.starting for seat in self._newcomers):
            self.close()

    def close(self) -> None:
        """Loader processes may have inherited the descriptor: closing it alone would not free the memory."""
        if self._memory >= 0:
            os.ftruncate(self._memory, 0)
            os.close(self._memory)
            self._memory = -1


def _memory_name(view: View) -> str:
    return f"shoal-state-{view.epoch}"


def _find_memory(pid: int, name: str) -> str:
    """Where a process has memory of this name open; FileNotFoundError if it has none."""
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"{folder}/{number}") == f"/memfd:{name} (deleted)":
                return f"{folder}/{number}"
    raise FileNotFoundError(f"{folder} has no {name}")


class ByLinks(Transfer):
    """Straight from the donor's memory to the newcomers'."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._taking: tuple[View, Taking] | None = None

    def give(self, view: View, newcomers: Sequence[str], data: bytes) -> None:
        # the first of each newcomer's in its first view, however many are given something here
        self.mesh.submit(Giving(data, [seat_of(member) for member in newcomers]), number=0)

    def take(self, view: View, donor: str) -> bytearray | None:
        if self._taking is None or self._taking[0] != view:
            self._taking = (view, Taking(seat_of(donor), LARGEST))
            self.mesh.submit(self._taking[1], number=0)
        task = self._taking[1]
        return task.items[0] if task.done.is_set() and task.error is None else None
