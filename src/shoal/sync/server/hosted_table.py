"""A table of rows in a server process: pulls and pushes name rows, checkpoints read it block by block.

Rows that a member names are checked before anything is read or changed: one that is no row of this server is refused,
which costs its sender alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.core.errors import PayloadError
from shoal.sync.server.hosted_shard import HostedShard
from shoal.sync.server.messages import (
    LoadRowsRequest,
    OpenRequest,
    PullRequest,
    PushRequest,
    ReadRowsRequest,
    RowsHead,
    ShardReply,
    ValuesHead,
)
from shoal.sync.server.row_shard import NOTHING, RowShard
from shoal.sync.server.row_table import RowTable
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.rules.table import make_rule
from shoal.sync.server.shard_state import RowNumbers, ShardUpdate, ShardValues

BLOCK_BYTES = 4 << 20
"""Of a block that a checkpoint reads at a time, at most; one row is always read."""


@dataclass
class HostedTable(HostedShard):
    """The members of its view go on by themselves: there are no rounds that all begin together."""

    wanted: dict[str, RowNumbers] = field(default_factory=dict)
    """Member -> rows of its pull."""

    @classmethod
    def open_table(cls, request: OpenRequest) -> "HostedTable":
        """UsageError: the request is for no table there can be."""
        assert request.table is not None
        rule = make_rule(request.rule, **request.settings)
        shard = RowShard(RowTable(request.table, rule.slots), rule, request.members, request.bound)
        return cls(request, shard, request.generation, NOTHING)

    @property
    def table(self) -> RowTable:
        assert isinstance(self.shard, RowShard)
        return self.shard.table

    def follow(self, generation: int, members: Sequence[str], hosts: Mapping[str, str] | None = None) -> None:
        """Newcomers begin at the clock of the slowest."""
        if generation > self.generation:
            self.generation, self.members = generation, tuple(members)
            self.shard.change_view(members)
            clocks = self.shard.state.clocks
            self._forget_pulls()
            self.wanted = {member: rows for member, rows in self.wanted.items() if member in clocks}

    def enter(self, member: str) -> None:
        """A member begins. It has missed nothing that others wait for, so its clock is theirs."""
        clocks = self.shard.state.clocks
        if member in clocks:
            clocks[member] = max(clocks.values())

    def read_push(self, member: str, request: PushRequest, arrays: Sequence[Any]) -> ShardUpdate:
        if len(arrays) != 2:
            raise PayloadError(f"{member} pushes {len(arrays)} arrays to a table; it takes rows and their values")
        rows, (values,) = read_rows(member, arrays[0]), self._read_values(member, arrays[1:])
        if values.size != len(rows) * self.table.shape.width:
            raise PayloadError(
                f"{member} pushes {values.size} numbers for {len(rows)} rows of {self.table.shape.width} each"
            )
        shaped = values.reshape(len(rows), self.table.shape.width)
        return ShardUpdate(member, request.clock, shaped, request.weight, rows=rows)

    def _read_values(self, member: str, arrays: Sequence[Any]) -> list[FloatArray]:
        if any(memoryview(array).nbytes % 4 for array in arrays):
            raise PayloadError(f"{member} sends bytes that are no float32")
        return [np.frombuffer(array, np.float32) for array in arrays]

    def want(self, member: str, request: PullRequest, arrays: Sequence[Any]) -> None:
        if len(arrays) != 1:
            raise PayloadError(f"{member} pulls from a table with {len(arrays)} arrays; it takes the rows")
        rows = read_rows(member, arrays[0])
        self.table.check(member, rows)
        self.wanted[member] = rows

    def write_values(self, found: ShardValues) -> tuple[ValuesHead, list[Any]]:
        rows = self.wanted.pop(found.member)
        return ValuesHead(found.clock, found.minimum, found.version), [self.table.read(rows).reshape(-1)]

    def serve_checkpoint(
        self, member: str, request: ReadRowsRequest | LoadRowsRequest, arrays: Sequence[Any]
    ) -> tuple[ShardReply, list[Any]]:
        """Read or load a block of rows."""
        if isinstance(request, ReadRowsRequest):
            row = (1 + len(self.table.slots)) * self.table.values[:1].nbytes
            rows, parts, following = self.table.block(request.start, request.stop, max(1, BLOCK_BYTES // row))
            return RowsHead(following), [rows, *(part.reshape(-1) for part in parts)]
        # later than the first push, rows of a checkpoint would undo what workers have trained
        if self.shard.state.version:
            raise PayloadError(f"{member} loads rows of a table that {self.shard.state.version} pushes have changed")
        if len(arrays) < 2:
            raise PayloadError(f"{member} loads {len(arrays)} arrays into a table; it takes rows, values and slots")
        self.table.load(member, read_rows(member, arrays[0]), self._read_values(member, arrays[1:]))
        return RowsHead(0), []


def read_rows(member: str, array: Any) -> RowNumbers:
    if memoryview(array).nbytes % 8:
        raise PayloadError(f"{member} names rows by {memoryview(array).nbytes} bytes; a row takes 8")
    # they are checked now and used later, and their memory may be the member's
    return np.frombuffer(array, np.int64).copy()
