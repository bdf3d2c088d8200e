"""Memory that the workers of a host have handed to a server: pushes are read there, and values are put there.

    read(…)      the arrays of a request, in place, after what their sender says of them was checked
    write(…)     puts the arrays of a reply where their member wants them; or returns them, to be sent

A worker connects to a file beside the server's and hands its areas over, each sealed against shrinking. When it ends,
however it ends, the connection does too: its areas are forgotten, and freed once no push that waits lies in them. On
this host members are who they say they are (`process.py`), as the folder is open to one user alone.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq

from shoal.core.errors import PayloadError
from shoal.hosts.sealed_memory import CAN_SEAL, map_sealed
from shoal.sync.server.array_places import ArrayPlace, decode_handover, decode_placed, encode

MOST_AREAS = 64
"""Of one member: they double in size, so it has few."""
MOST_LANDINGS = 4096
"""Requests of all members whose replies are waited for."""
_LONGEST = 256


def areas_file(address: str) -> str:
    """Where workers hand their memory over."""
    return address.removeprefix("ipc://") + ".areas"


class MemberAreas:
    """Of one server at `ipc://…`; used by its one thread."""

    def __init__(self, address: str, poller: zmq.Poller) -> None:
        self._poller = poller
        self._listener = self._listen(areas_file(address)) if CAN_SEAL else None
        self._connections: dict[socket.socket, set[tuple[str, int]]] = {}
        self._areas: dict[tuple[str, int], memoryview] = {}
        self._landings: dict[tuple[str, int], ArrayPlace] = {}

    def _listen(self, file: str) -> socket.socket:
        # SEQPACKET keeps messages apart, so each descriptor comes with its own head
        listener = self._register(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(file)
        os.chmod(file, 0o600)
        listener.listen(128)
        return listener

    def _register(self, found: socket.socket) -> socket.socket:
        found.setblocking(False)
        self._poller.register(found.fileno(), zmq.POLLIN)
        return found

    def take_in(self) -> None:
        """Whatever has been handed over by now."""
        with contextlib.suppress(BlockingIOError):
            while self._listener is not None:
                self._connections[self._register(self._listener.accept()[0])] = set()
        for connection in list(self._connections):
            self._hear(connection)

    def _hear(self, connection: socket.socket) -> None:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 1)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self._forget(connection)
                return
            self._take(connection, data, descriptors)

    def _take(self, connection: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
        try:
            said = decode_handover(data)
            if len(descriptors) != 1 or said.area >= MOST_AREAS:
                raise PayloadError(f"{said.member} hands over area {said.area} with {len(descriptors)} descriptors")
            # sealed: if its owner could shrink it, a read here would end this process by SIGBUS
            self._areas[said.member, said.area] = memoryview(map_sealed(descriptors[0], said.size))
            self._connections[connection].add((said.member, said.area))
        except (PayloadError, OSError) as error:  # whatever names that area is refused, and its sender told
            sys.stderr.write(f"shoal: memory that a worker handed to a server was refused: {error}\n")
        finally:
            # the mapping holds the memory without them
            for each in descriptors:
                os.close(each)

    def _forget(self, connection: socket.socket) -> None:
        self._poller.unregister(connection.fileno())
        for key in self._connections.pop(connection):
            self._areas.pop(key, None)
        members = {member for member, _ in self._areas}
        self._landings = {key: place for key, place in self._landings.items() if key[0] in members}
        connection.close()

    def _find(self, member: str, place: ArrayPlace) -> memoryview:
        """PayloadError: it lies nowhere."""
        if (member, place.area) not in self._areas:
            self.take_in()  # it was sent before the message that names it, which may have been taken first
        area = self._areas.get((member, place.area))
        if area is None or place.start + place.size > len(area):
            size, end = 0 if area is None else len(area), place.start + place.size
            raise PayloadError(f"{member} names bytes {place.start} to {end} of area {place.area}, which has {size}")
        return area[place.start : place.start + place.size]

    def read(self, member: str, number: int, frame: bytes, parts: Sequence[Any]) -> list[Any]:
        """Return the arrays of a request. `parts`: those that came with it. PayloadError: they are not there."""
        placed, rest = decode_placed(frame, member), iter(parts)
        if sum(place is None for place in placed.places) != len(parts):
            raise PayloadError(f"{member} sends {len(parts)} arrays and names the places of others")
        if placed.landing is not None:
            self._find(member, placed.landing)
            if len(self._landings) >= MOST_LANDINGS:  # of members that are gone, and of pulls that newer ones replaced
                self._landings.pop(next(iter(self._landings)))
            self._landings[member, number] = placed.landing
        return [next(rest) if place is None else self._find(member, place) for place in placed.places]

    def write(self, member: str, number: int, arrays: Sequence[Any], is_last: bool) -> list[Any]:
        """Return the parts of a reply after its head. `is_last`: no other reply to this request comes."""
        place = self._landings.pop((member, number), None) if is_last else None
        flat = [np.asarray(array).reshape(-1).view(np.uint8) for array in arrays]
        if place is None or not flat or sum(map(len, flat)) > place.size:
            # copies: what is sent later is not to change meanwhile
            return [encode([]), *(each.copy() for each in flat)]
        try:
            landing = np.frombuffer(self._find(member, place), np.uint8)
        except PayloadError:  # the member is gone
            return [encode([])]
        at = 0
        for each in flat:
            landing[at : at + len(each)] = each
            at += len(each)
        return [encode([len(each) for each in flat])]

    def close(self) -> None:
        for connection in list(self._connections):
            self._forget(connection)
        if self._listener is not None:
            self._poller.unregister(self._listener.fileno())
            self._listener.close()
