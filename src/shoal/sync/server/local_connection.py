"""A connection to a server in this very process: the null member, for a run of one worker."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.hosts.status_board import StatusBoard
from shoal.sync.server.connection import NUMBER, ServerConnection
from shoal.sync.server.host import ShardHost
from shoal.sync.server.messages import ShardReply, encode


class LocalServerConnection(ServerConnection):
    """To one `ShardHost` of its own, which answers before `send` returns."""

    def __init__(self, member: str, board: StatusBoard, seconds: float) -> None:
        super().__init__(member, board, seconds)
        self._host = ShardHost(self._answer)

    def __len__(self) -> int:
        return 1

    def _transmit(self, server: int, channel: int, head: bytes, arrays: Sequence[Any]) -> None:
        (number,) = NUMBER.unpack_from(head)
        self._host.handle(self.member, number, head[NUMBER.size :], [_flat(array) for array in arrays])

    def _answer(self, member: str, number: int, reply: ShardReply, arrays: Sequence[Any]) -> None:
        self._take(0, number, encode(reply), [_flat(array) for array in arrays])

    def poll(self, server: int, milliseconds: int = 0) -> None:
        """What was asked is answered already."""


def _flat(array: Any) -> memoryview:
    flat: Any = np.asarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)
