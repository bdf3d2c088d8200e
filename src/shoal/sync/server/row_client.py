"""A worker's view of a table on the servers: it holds the rows that it has asked for, and no others.

    rows = client.pull(numbers)          waits until the staleness bound allows it
    client.push(numbers, updates, …)     counted once; clock + 1, also where no row is pushed
    client.read(part, parts)             blocks of rows for a checkpoint, of one part of each server's
    client.load(numbers, arrays)         a block of a checkpoint, of whatever number of servers

Row r lies on server r modulo their number. A push is answered before the next one is made, so a worker's own pushes are
in what it pulls. Nothing here is a collective call.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.core.errors import Evicted, PayloadError, Quarantined, UsageError
from shoal.membership.session import MembershipSession
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.messages import (
    ROWS,
    LoadRowsRequest,
    OpenRequest,
    PullRequest,
    PushReply,
    PushRequest,
    ReadRowsRequest,
    RoundReply,
    RoundRequest,
    RowsHead,
    ShardReply,
    TableShape,
    TensorSize,
    ValuesHead,
    read_outcome,
)
from shoal.sync.server.row_shard import NOTHING
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.shard_state import PushOutcome, RowNumbers

MOST_REQUEST = 64 << 20
"""Bytes of rows that one request to one server may name or bring."""

LAST_GENERATION = 1 << 62
"""After which no view comes."""


@dataclass(frozen=True)
class TableSpec:
    """What a table is, the same on all workers."""

    name: str
    rows: int
    width: int
    rule: str = "add"
    settings: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    scale: float = 0.0
    """Standard deviation of the first values; 0: all are zero until they are loaded."""

    @property
    def row_bytes(self) -> int:
        """Of a row in a push: its number and its values."""
        return 8 + 4 * self.width


class RowClient:
    """Of one table. `bound`: steps a worker may be ahead of the slowest; None: any number."""

    def __init__(
        self, spec: TableSpec, servers: ServerConnection, session: MembershipSession, bound: int | None = None
    ) -> None:
        self.spec, self.servers, self.session, self.bound = spec, servers, session, bound
        self._count = min(len(servers), spec.rows)
        """Servers that have rows of it."""
        self._channel = servers.take_channel()
        self._clocks = [0] * self._count
        self._generation = -1
        self.rows_pulled = self.rows_pushed = self.refused = self.staleness = 0

    def open(self) -> None:
        """Name the table to the servers; the first to do so makes it."""
        spec, view = self.spec, self.session.view
        size = MOST_REQUEST
        self.servers.declare(self._channel, [[TensorSize(ROWS, size)]] * self._count)
        facts = (self._channel, spec.rule, spec.settings, self.bound, view.generation, list(view.members))
        numbers = {}
        for server in range(self._count):
            shape = TableShape(spec.rows, spec.width, server, self._count, spec.seed, spec.scale)
            numbers[server] = self.servers.send(server, OpenRequest(*facts, table=shape), [NOTHING])
        self._generation = LAST_GENERATION  # nothing else is asked of a table before it is open
        for server, (reply, _) in self._replies(numbers, RoundReply):
            assert isinstance(reply, RoundReply)
            self._clocks[server] = reply.clock
        self._generation = view.generation

    def follow_view(self) -> None:
        """Tell the servers who the members are: nobody waits for lost ones."""
        view = self.session.newest_view
        if view.generation <= self._generation or self.session.member not in view:
            return
        self._generation = view.generation
        for server in range(self._count):
            self.servers.forget(
                self.servers.send(server, RoundRequest(self._channel, 0, view.generation, list(view.members)))
            )

    def pull(self, rows: RowNumbers) -> FloatArray:
        """The values of these rows, which ascend."""
        self._check(rows)
        self.follow_view()
        found = np.empty((len(rows), self.spec.width), np.float32)
        places = self._places(rows)
        numbers = {}
        for server, mine in places.items():
            request = PullRequest(self._clocks[server], self._channel)
            numbers[server] = self.servers.send(server, request, [rows[mine] // self._count])
        for server, (reply, arrays) in self._replies(numbers, ValuesHead):
            assert isinstance(reply, ValuesHead)
            found[places[server]] = self._read_values(server, arrays, len(places[server]))
            self.staleness = max(self.staleness, self._clocks[server] - reply.minimum)
            # dropped, because nothing here counts waits by member
            self.servers.take_slowest(numbers[server])
        self.rows_pulled += len(rows)
        return found

    def _check(self, rows: RowNumbers) -> None:
        # rows ascend, so the first and the last tell
        if len(rows) and not (int(rows[0]) >= 0 and int(rows[-1]) < self.spec.rows):
            wrong = int(rows[0]) if int(rows[0]) < 0 else int(rows[-1])
            raise UsageError(f"row {wrong} of table {self.spec.name!r}, which has rows 0 to {self.spec.rows - 1}")

    def _places(self, rows: RowNumbers) -> dict[int, RowNumbers]:
        """Where in `rows` those of each server are; servers without any are left out."""
        owners = rows % self._count
        found = {server: np.flatnonzero(owners == server) for server in range(self._count)}
        most = max(map(len, found.values()), default=0) * self.spec.row_bytes
        if most > MOST_REQUEST:
            raise UsageError(
                f"a step uses {len(rows):,} rows of table {self.spec.name!r}, {most >> 20} MB of one server; at most "
                f"{MOST_REQUEST >> 20} MB travel at once: use smaller batches, or more shards"
            )
        return {server: places for server, places in found.items() if len(places)}

    def _read_values(self, server: int, arrays: Sequence[Any], rows: int) -> FloatArray:
        if len(arrays) != 1 or memoryview(arrays[0]).nbytes != 4 * rows * self.spec.width:
            raise PayloadError(f"server {server} sends {len(arrays)} arrays for {rows} rows of {self.spec.width}")
        return np.frombuffer(arrays[0], np.float32).reshape(rows, self.spec.width)

    def push(self, rows: RowNumbers, updates: FloatArray, weight: float) -> None:
        """One push of this worker, to all servers; `weight`: its share of the step's samples."""
        self._check(rows)
        self.follow_view()
        places, nobody = self._places(rows), np.zeros(0, np.int64)
        # `kept`: messages refer to these arrays until they are answered
        numbers, kept = {}, []
        # also servers without any of these rows: the clocks of all go on
        for server in range(self._count):
            mine = places.get(server, nobody)
            kept.append([rows[mine] // self._count, np.ascontiguousarray(updates[mine], np.float32).reshape(-1)])
            request = PushRequest(self._clocks[server], weight, self._channel)
            numbers[server] = self.servers.send(server, request, kept[-1])
        outcomes = set()
        for server, (reply, _) in self._replies(numbers, PushReply):
            assert isinstance(reply, PushReply)
            outcomes.add(read_outcome(reply, f"server {server}"))
            self._clocks[server] += 1
        self.rows_pushed += len(rows)
        self._judge(outcomes)

    def _judge(self, outcomes: set[PushOutcome]) -> None:
        member = self.session.member
        if PushOutcome.QUARANTINED in outcomes:
            raise Quarantined(
                f"{member} pushed rows of {self.spec.name!r} that are not finite three times in a row; lower the rate",
                "not finite",
            )
        if PushOutcome.LATE in outcomes:
            raise Evicted(f"{member} is no member any more; the others go on without it")
        self.refused += PushOutcome.REFUSED in outcomes

    def read(self, part: int, parts: int) -> Iterator[list[Any]]:
        """Blocks of [row numbers, values, slots …] of rows that were ever used, in parts that are about equal."""
        for server in range(self._count):
            size = -(-(self.spec.rows - server) // self._count)
            at, stop = size * part // parts, size * (part + 1) // parts
            while at < stop:
                number = self.servers.send(server, ReadRowsRequest(self._channel, at, stop))
                ((_, (reply, arrays)),) = self._replies({server: number}, RowsHead)
                assert isinstance(reply, RowsHead)
                if not at < reply.next <= stop:
                    raise PayloadError(f"server {server} reads on from row {reply.next} after {at} of {stop}")
                at = reply.next
                if len(arrays) and memoryview(arrays[0]).nbytes:
                    yield arrays

    def load(self, rows: RowNumbers, arrays: Sequence[FloatArray]) -> None:
        """Give these rows what a checkpoint, or the model, says: values, and slots if there are any."""
        owners = rows % self._count
        for server in range(self._count):
            mine = np.flatnonzero(owners == server)
            if len(mine):
                parts = [
                    np.ascontiguousarray(array.reshape(len(rows), -1)[mine], np.float32).reshape(-1) for array in arrays
                ]
                sent = [rows[mine] // self._count, *parts]
                number = self.servers.send(server, LoadRowsRequest(self._channel), sent)
                list(self._replies({server: number}, RowsHead))

    def _replies(self, numbers: dict[int, int], kind: type) -> Iterator[tuple[int, tuple[ShardReply, list[Any]]]]:
        for server, number in numbers.items():
            reply, arrays = self.servers.wait(server, number, self.follow_view)
            if not isinstance(reply, kind):
                raise PayloadError(f"server {server} answers with {type(reply).__name__} instead of {kind.__name__}")
            yield server, (reply, arrays)
