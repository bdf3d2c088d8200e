"""Transfers the state of a run from a member to newcomers: through memory on one host, else over links."""

import contextlib
import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from shoal.core.disk import DISK
from shoal.core.errors import ShoalError
from shoal.hosts.status_board import StatusBoard, WorkerState
from shoal.membership.session import slot_of
from shoal.membership.view import MembershipView
from shoal.transport.mesh import LinkMesh
from shoal.transport.messenger import MessageTicket, ReceivedMessage

LARGEST = 1 << 34
"""Largest accepted state in bytes."""


class StateTransfer(ABC):
    """One worker's side of the transfer: it gives its state, or takes another's."""

    @abstractmethod
    def give(self, view: MembershipView, newcomers: Sequence[str], data: bytes) -> None:
        """Give the state to newcomers, once to each in a view."""

    @abstractmethod
    def take(self, view: MembershipView, donor: str) -> bytes | bytearray | None: ...

    def release(self) -> None:  # noqa: B027  (there may be nothing to do)
        """Free what newcomers no longer need; the donor calls it after every step."""


class MemoryStateTransfer(StateTransfer):
    """Transfer on one host through anonymous memory of the donor, which newcomers open through its entry in /proc.

    It is not a file, because a full disk must not keep a lost worker from being replaced. The memory is sealed when it
    is complete, so that no newcomer reads half of it, and freed when all have read it.
    """

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._memory = -1
        self._newcomers: list[int] = []

    def give(self, view: MembershipView, newcomers: Sequence[str], data: bytes) -> None:
        self.close()  # newcomers of earlier views have read theirs
        self._newcomers = [slot_of(member) for member in newcomers]
        # The name, with the generation in it, is how the newcomer finds it in /proc.
        self._memory = os.memfd_create(_memory_name(view), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        DISK.write(self._memory, data)
        # The seal is also the signal that all of it is there.
        fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)

    def take(self, view: MembershipView, donor: str) -> bytes | None:
        pid = int(self._board.read(slot_of(donor))["pid"])
        try:
            with open(_find_memory(pid, _memory_name(view)), "rb") as file:
                sealed = fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
                return file.read(LARGEST) if sealed else None
        except (FileNotFoundError, ProcessLookupError):  # not written yet, or the donor has ended
            return None
        except PermissionError as error:
            raise ShoalError(f"cannot read the state that {donor} gives (pid {pid}): {error}") from None

    def release(self) -> None:
        # A newcomer that left the state `starting` has read it.
        if self._memory >= 0 and all(self._board.state(slot) > WorkerState.starting for slot in self._newcomers):
            self.close()

    def close(self) -> None:
        """Free the memory by truncating it: loader processes may have inherited the descriptor, so closing does not."""
        if self._memory >= 0:
            os.ftruncate(self._memory, 0)
            os.close(self._memory)
            self._memory = -1


def _memory_name(view: MembershipView) -> str:
    return f"shoal-state-{view.generation}"


def _find_memory(pid: int, name: str) -> str:
    """Return the path under which a process has memory of this name open; raise FileNotFoundError if it has none."""
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"{folder}/{number}") == f"/memfd:{name} (deleted)":
                return f"{folder}/{number}"
    raise FileNotFoundError(f"{folder} has no {name}")


PORT = "state"
CREDIT = 2
"""States of one donor under way: that of an ended view may still travel when the next one's comes."""


class LinkStateTransfer(StateTransfer):
    """Transfer over links, as a message from the donor's memory to the newcomer's; a view that ends does not stop it.

    Only a donor that this worker asks may send, and only until the worker trains.
    """

    def __init__(self, mesh: LinkMesh) -> None:
        self._messenger = mesh.messenger
        self._tickets: dict[str, MessageTicket] = {}
        self._asked: set[str] = set()
        self._states: dict[str, tuple[int, bytes]] | None = {}
        """By donor: generation of the view, and state. None once this worker trains."""
        self._messenger.serve(PORT, self._receive, CREDIT, largest=LARGEST, threaded=False, senders=())

    def give(self, view: MembershipView, newcomers: Sequence[str], data: bytes) -> None:
        head, state = str(view.generation).encode(), np.frombuffer(data, np.uint8)
        for member in newcomers:
            if member in self._tickets:  # of an older view, so its state is out of date
                self._messenger.cancel(member, self._tickets[member], "replaced by that of a newer view")
            self._tickets[member] = self._messenger.push(member, PORT, head, [state])

    def take(self, view: MembershipView, donor: str) -> bytes | None:
        if donor not in self._asked:
            self._asked.add(donor)
            self._messenger.admit(PORT, donor)
        generation, data = (self._states or {}).get(donor, (-1, b""))
        return data if generation == view.generation else None

    def release(self) -> None:
        self._states = None
        for member in [member for member, ticket in self._tickets.items() if ticket.done.is_set()]:
            del self._tickets[member]

    def _receive(self, message: ReceivedMessage) -> None:
        if self._states is not None:
            (state,) = message.arrays
            self._states[message.sender] = (int(message.head), state.tobytes())
