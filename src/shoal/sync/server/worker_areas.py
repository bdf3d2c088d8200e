"""Memory of a worker that the servers of its host map: they read pushes where they lie, and put values there.

    take(size)             memory of this process, in an area that servers can map
    place(server, array)   where it lies; its area is handed to the server before the first message that names it

Each area is twice as large as those before it together, so there are few of them. They belong to the worker: when it
dies, its servers hear that at the socket and let go, so nobody has to free what it left.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError
from shoal.hosts.sealed_memory import CAN_SEAL, SealedMemory
from shoal.sync.server.array_places import AreaHandover, ArrayPlace, encode
from shoal.sync.server.member_areas import areas_file

SharedBytes = npt.NDArray[np.uint8]
LEAST = 1 << 16
"""Bytes of the first area."""
LINE = 64
"""Arrays begin at multiples of it: the width of a cache line, and of vector instructions."""
PAUSE = 0.01


@dataclass
class _WorkerArea:
    sealed: SealedMemory
    start: int
    """Its address."""
    size: int
    used: int = 0
    told: set[int] = field(default_factory=set)
    """Servers that have it."""

    def has(self, address: int, size: int) -> bool:
        return self.start <= address and address + size <= self.start + self.size


class WorkerAreas:
    """Of one worker; used by its training thread."""

    def __init__(
        self, member: str, addresses: Sequence[str], seconds: float, look: Callable[[], None] = lambda: None
    ) -> None:
        """`look`: called while a server does not listen yet; may raise."""
        self._member, self._files = member, [areas_file(address) for address in addresses]
        self._seconds, self._look = seconds, look
        self._areas: list[_WorkerArea] = []
        self._sockets: dict[int, socket.socket] = {}

    def take(self, size: int) -> SharedBytes:
        """Return memory that is zero. ShoalError: the host has too little."""
        # servers map sealed memory only, so these arrays travel with the messages
        if not CAN_SEAL:
            return np.zeros(size, np.uint8)
        area = self._areas[-1] if self._areas else None
        if area is None or area.size - area.used < size:
            area = self._add_area(max(size, LEAST, sum(each.size for each in self._areas)))
        found = np.frombuffer(area.sealed.memory, np.uint8, size, area.used)
        area.used += -(-size // LINE) * LINE
        return found

    def _add_area(self, size: int) -> _WorkerArea:
        sealed = SealedMemory.create(size)
        start = np.frombuffer(sealed.memory, np.uint8).ctypes.data
        self._areas.append(_WorkerArea(sealed, start, len(sealed.memory)))
        return self._areas[-1]

    def place(self, server: int, array: Any) -> ArrayPlace | None:
        """Return where an array lies, for this server; None if it lies in no area."""
        flat = np.asarray(array)
        address = flat.ctypes.data
        for number, area in enumerate(self._areas):
            if flat.flags.c_contiguous and flat.nbytes and area.has(address, flat.nbytes):
                if server not in area.told:
                    self._hand_over(server, number, area)
                return ArrayPlace(number, address - area.start, flat.nbytes)
        return None

    def _hand_over(self, server: int, number: int, area: _WorkerArea) -> None:
        """What was sent here is at the server before any message that is sent later."""
        if server not in self._sockets:
            self._sockets[server] = self._connect(self._files[server])
        head = encode(AreaHandover(self._member, number, area.size))
        # a server that is gone is noticed where its answer is waited for
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self._sockets[server], [head], [area.sealed.descriptor])
        area.told.add(server)

    def _connect(self, file: str) -> socket.socket:
        deadline, found = Deadline.after(self._seconds), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        found.settimeout(self._seconds)
        while True:
            try:
                found.connect(file)
            except (FileNotFoundError, ConnectionRefusedError):  # it does not listen yet
                self._look()
                if deadline.expired:
                    found.close()
                    raise DeadlineError(
                        f"{self._member} has waited {self._seconds:.0f} s for a server to listen at {file!r}"
                    ) from None
                time.sleep(PAUSE)
            else:
                return found

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._sockets = {}
        for area in self._areas:
            area.sealed.close()
