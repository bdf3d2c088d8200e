"""A group whose workers share one host's memory.

Arena:  board | flags of the mailboxes | mailbox of worker 0 | … | mailbox of worker p-1 | regions of the exchange …

A round of post:  write own mailbox -> posted[me] = n -> wait for all posted -> read -> taken[me] = n
The next round waits for all taken first, so nobody's mailbox is overwritten before everybody has read it.
"""

import struct
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from shoal.cluster import board
from shoal.cluster.arena import Arena, pages
from shoal.cluster.group import Group, as_bytes, deadline_seconds
from shoal.cluster.patience import Patience
from shoal.core.errors import UsageError

MAILBOX = 1 << 20
_LENGTH = struct.Struct("<q")


class SharedGroup(Group):
    """Workers of one host that hold the same arena."""

    store: object = None
    """Where the workers met, if they had to: worker 0 may be its host, so it lives as long as the group."""

    def __init__(self, arena: Arena, rank: int, size: int) -> None:
        if size > board.MOST_WORKERS:
            raise UsageError(f"{size} workers on one host; at most {board.MOST_WORKERS} are possible")
        self.arena, self.rank, self.size, self.seconds = arena, rank, size, deadline_seconds()
        self.board = board.Board(arena.map(0, board.BYTES))
        self.board.enter(rank)
        self.patience = Patience(self.board, rank, self.seconds)
        flags_bytes = pages(2 * 8 * size)
        memory = np.frombuffer(arena.map(board.BYTES, flags_bytes + size * MAILBOX), np.uint8)
        self._posted, self._taken = memory[: 2 * 8 * size].view(np.int64).reshape(2, size)
        self._boxes = [memory[flags_bytes + r * MAILBOX :][:MAILBOX] for r in range(size)]
        self._round = 0
        self._used = board.BYTES + flags_bytes + size * MAILBOX

    def region(self, size: int) -> memoryview:
        """`size` more bytes of shared memory, the same for every worker; a collective call."""
        size = pages(size)
        memory = memoryview(self.arena.map(self._used, size))
        self._used += size
        return memory

    def gather(self, data: bytes) -> list[bytes]:
        parts: list[bytearray] = [bytearray() for _ in range(self.size)]
        total = [0] * self.size
        sent, room = 0, MAILBOX - _LENGTH.size
        while True:
            self._begin()
            chunk = np.frombuffer(data[sent : sent + room], np.uint8)
            sent += len(chunk)
            box = self._boxes[self.rank]
            box[: _LENGTH.size] = np.frombuffer(_LENGTH.pack(len(data)), np.uint8)
            box[_LENGTH.size : _LENGTH.size + len(chunk)] = chunk
            self._meet()
            for r, peer in enumerate(self._boxes):
                (total[r],) = _LENGTH.unpack(peer[: _LENGTH.size].tobytes())
                take = min(room, total[r] - len(parts[r]))
                parts[r] += peer[_LENGTH.size : _LENGTH.size + take].tobytes()
            self._end()
            if all(len(part) == length for part, length in zip(parts, total, strict=True)):
                return [bytes(part) for part in parts]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            staged = tensor.detach().cpu().contiguous()
            raw = as_bytes(staged).numpy()
            for start in range(0, len(raw), MAILBOX):
                piece = raw[start : start + MAILBOX]
                self._begin()
                if self.rank == 0:
                    self._boxes[0][: len(piece)] = piece
                self._meet()
                if self.rank != 0:
                    piece[:] = self._boxes[0][: len(piece)]
                self._end()
            if self.rank != 0 and staged.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(staged)

    def _begin(self) -> None:
        self.patience.until(self._taken, self._round)
        self._round += 1

    def _meet(self) -> None:
        self.patience.publish(self._posted, self._round)
        self.patience.until(self._posted, self._round)

    def _end(self) -> None:
        self.patience.publish(self._taken, self._round)

    def close(self) -> None:
        self.arena.close()
