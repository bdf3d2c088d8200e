"""A worker's connections to the servers of its own host: small messages by sockets, arrays in memory that both map.

    allocate(size)                memory of this worker's, in an area that servers map (`worker_areas.py`)
    send(server, request, arrays, landing)
                                  arrays that lie there are named, and not sent; the reply's are put at `landing`

A push is written once by the worker and read there by the server, and values are copied once, to where the worker
wants them. Arrays that lie elsewhere travel with the message: rows of tables, and what is said once.
"""

from collections.abc import Sequence
from typing import Any

from shoal.core.errors import PayloadError, PeerLost
from shoal.hosts.status_board import StatusBoard
from shoal.sync.server.array_places import PlacedArrays, decode_sizes, encode
from shoal.sync.server.connection import NUMBER
from shoal.sync.server.socket_connection import SocketServerConnection
from shoal.sync.server.worker_areas import SharedBytes, WorkerAreas


class SharedServerConnection(SocketServerConnection):
    """To `ipc://…` addresses."""

    def __init__(self, addresses: Sequence[str], member: str, board: StatusBoard, seconds: float) -> None:
        super().__init__(addresses, member, board, seconds)
        self._areas = WorkerAreas(member, self.addresses, seconds, self._look)
        self._landings: dict[int, memoryview] = {}

    def allocate(self, size: int) -> SharedBytes:
        return self._areas.take(size)

    def _look(self) -> None:
        if self.board.aborted is not None:
            raise PeerLost(f"{self.member} stops: worker {self.board.aborted} is lost")

    def _land(self, number: int, landing: Any) -> None:
        self._landings[number] = memoryview(landing).cast("B")

    def forget(self, number: int) -> None:
        super().forget(number)
        self._landings.pop(number, None)

    def _transmit(self, server: int, channel: int, head: bytes, arrays: Sequence[Any]) -> None:
        (number,) = NUMBER.unpack_from(head)
        landing = self._landings.get(number)
        places = [self._areas.place(server, array) for array in arrays]
        placed = PlacedArrays(places, None if landing is None else self._areas.place(server, landing))
        rest = [array for array, place in zip(arrays, places, strict=True) if place is None]
        self._open()[server].send_multipart([head, encode(placed), *rest], copy=False)

    def _read_arrays(self, server: int, number: int, parts: Sequence[Any]) -> list[Any]:
        sizes, landing = decode_sizes(bytes(parts[0]), f"server {server}"), self._landings.get(number)
        if not sizes:
            return list(parts[1:])
        if landing is None:  # the request was forgotten
            return []
        if sum(sizes) > len(landing):
            raise PayloadError(f"server {server} puts {sum(sizes)} bytes where there is room for {len(landing)}")
        ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
        return [landing[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def _take(self, server: int, number: int, head: bytes, arrays: list[Any]) -> None:
        super()._take(server, number, head, arrays)
        if number not in self._expected:  # else it was told that it waits
            self._landings.pop(number, None)

    def close(self) -> None:
        super().close()
        self._areas.close()
