"""A shard that is a table of rows: members push and pull the rows they need, and the others stay as they are.

    push(update)     update.rows: places of the rows it changes; clocks, staleness and losses are those of any shard
    pull(…)          says when the values may be read; which rows, the host knows (`hosted_table.py`)

With bound 0 the updates of a round are added up, row by row in the order of member names, and the rule is applied once:
a round of several workers then equals one step of one worker with all their samples, whatever the rule.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014 (sparse keys). Do not use it
where every row is used in every step: naming rows then only adds bytes.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shoal.core.errors import PayloadError, UsageError
from shoal.sync.server.row_table import RowTable
from shoal.sync.server.rules.base import FloatArray, ServerRule
from shoal.sync.server.shard import ParameterShard, scaled
from shoal.sync.server.shard_state import JournalEntry, RowNumbers, ShardUpdate, ShardValues

NOTHING: FloatArray = np.zeros(0, np.float32)


class RowShard(ParameterShard):
    """Of a `RowTable`. Its state has no values of its own."""

    def __init__(
        self,
        table: RowTable,
        rule: ServerRule,
        members: Sequence[str],
        bound: int | None,
        journal: Callable[[JournalEntry], None] = lambda entry: None,
    ) -> None:
        if not rule.zero_changes_nothing:
            raise UsageError(f"{type(rule).__name__} changes rows that nobody uses; tables take add, sgd or adagrad")
        super().__init__(NOTHING, rule, members, bound, journal)
        self.table = table

    def _check(self, update: ShardUpdate) -> None:
        width, rows = self.table.shape.width, update.rows
        if rows is None or update.values.shape != (len(rows), width):
            named = "no rows" if rows is None else f"{len(rows)} rows"
            raise PayloadError(f"{update.member} pushes {update.values.shape} numbers and {named} of {width} numbers")
        self.table.check(update.member, rows)
        self._check_weight(update)

    def _apply_update(self, update: ShardUpdate, weight: float) -> None:
        assert update.rows is not None
        self._apply_rows(update.rows, scaled(update.values, weight))

    def _apply_rows(self, rows: RowNumbers, values: FloatArray) -> None:
        self.table.update(self.rule, rows, values, self.state.version)
        self.state.version += 1

    def _apply_round(self, updates: dict[str, ShardUpdate]) -> None:
        ordered = [updates[member] for member in sorted(updates)]
        if ordered:
            self._apply_rows(*add_rows([(u.rows, scaled(u.values, u.weight)) for u in ordered if u.rows is not None]))

    def _values(self, member: str, clock: int) -> ShardValues:
        return ShardValues(member, clock, self.minimum, self.state.version, NOTHING)


def add_rows(parts: Sequence[tuple[RowNumbers, FloatArray]]) -> tuple[RowNumbers, FloatArray]:
    """Each row once, with the sum of its values in the order of `parts`."""
    if len(parts) == 1:
        return parts[0]
    rows, places = np.unique(np.concatenate([rows for rows, _ in parts]), return_inverse=True)
    total = np.zeros((len(rows), parts[0][1].shape[1]), np.float32)
    at = 0
    for mine, values in parts:  # a row stands once in each part, so no sum is lost
        total[places[at : at + len(mine)]] += values
        at += len(mine)
    return rows, total
