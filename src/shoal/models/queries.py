"""Questions of users, in SQL, to the index of a registry: read only, with a time limit.

The view `versions` is the table of that name with `ref`, `aliases` and a column for every metric, so that
`where accuracy > 0.97` works. The database is opened read-only, and everything but reading is refused by name.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.models.postgres_index import PostgresIndex
from shoal.models.registry import Registry

SECONDS = 10.0
ROWS = 100_000
"""Rows of an answer at most."""
LONGEST = 16 << 20
"""Bytes of any text or number a query may build."""
COLUMNS = 1000
"""Metrics that become columns at most; others are in the JSON column `metrics`."""
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
# Functions that load code, read or write files, or take addresses.
_REFUSED = {"load_extension", "readfile", "writefile", "fts3_tokenizer"}

Answer = tuple[list[str], list[tuple[Any, ...]]]
"""Names of the columns, and rows."""


def select(registry: Registry, sql: str, seconds: float = SECONDS) -> Answer:
    """Run one `select`; UsageError says what SQLite finds wrong with it."""
    if not registry.exists():
        raise UsageError(f"there is no registry in {registry.root}; set SHOAL_MODELS")
    index = registry.index
    if isinstance(index, PostgresIndex):
        columns, rows = index.read_only(sql, _postgres_view(index), seconds, ROWS)
    else:
        columns, rows = _select_from_file(registry, sql, seconds)
    if columns is None:
        raise UsageError(f"{sql[:60]!r} asks nothing; write 'select ...'")
    if len(rows) > ROWS:
        raise UsageError(f"the answer has more than {ROWS} rows; add a limit")
    return columns, rows


def _select_from_file(registry: Registry, sql: str, seconds: float) -> tuple[list[str] | None, list[tuple[Any, ...]]]:
    with _opened(registry, seconds) as connection:
        try:
            cursor = connection.execute(sql)
            # One more than allowed shows that there are more.
            rows = cursor.fetchmany(ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise UsageError(_reason(error, seconds)) from None
    return [column[0] for column in cursor.description] if cursor.description is not None else None, rows


def query(registry: Registry, clauses: str, seconds: float = SECONDS) -> Answer:
    """The versions that fit: `where accuracy > 0.97 order by bytes`; the word `where` may be left out."""
    words = clauses.split(maxsplit=1)
    first = words[0].lower() if words else ""
    if first == "select":
        raise UsageError("a query begins with 'where' or 'order by'; whole statements are for 'shoal models sql'")
    text = clauses if first in ("where", "order", "limit", "group", "") else f"where {clauses}"
    return select(registry, f"select * from versions {text}", seconds)


@contextmanager
def _opened(registry: Registry, seconds: float) -> Iterator[sqlite3.Connection]:
    uri = f"{(registry.root / 'index.sqlite').as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        # The view first: the authorizer below refuses to create one.
        connection.execute(_view(connection))
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        # Read-only is this file alone: an attached one could be written.
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        deadline = Deadline.after(seconds)
        # Called every 1000 instructions of SQLite's machine; anything but 0 stops the query.
        connection.set_progress_handler(lambda: int(deadline.expired), 1000)
        connection.set_authorizer(_authorize)
        yield connection


def _authorize(action: int, _first: str | None, second: str | None, *_: str | None) -> int:
    allowed = action in _ALLOWED and (action != sqlite3.SQLITE_FUNCTION or second not in _REFUSED)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _view(connection: sqlite3.Connection) -> str:
    """A view of this connection alone; it hides the table of the same name."""
    columns = [row[1] for row in connection.execute("pragma table_info(versions)")]
    names = [name for (name,) in connection.execute("select name from metric_names order by name")]
    parts = [
        "v.name || ':' || v.version as ref",
        *(f"v.{column}" for column in columns),
        "(select group_concat(a.alias, ' ') from main.aliases a where a.name = v.name and a.version = v.version)"
        " as aliases",
        *(f"""json_extract(v.metrics, '$."{name}"') as "{name}\"""" for name in _metric_columns(names, columns)),
    ]
    return f"create temp view versions as select {', '.join(parts)} from main.versions v"


def _postgres_view(index: PostgresIndex) -> str:
    """The same, in PostgreSQL's words."""
    columns, names = index.columns_and_metrics()
    parts = [
        "v.name || ':' || v.version as ref",
        *(f"v.{column}" for column in columns),
        "(select string_agg(a.alias, ' ') from aliases a where a.name = v.name and a.version = v.version) as aliases",
        *(f"""(v.metrics::json->>'{name}')::float8 as "{name}\"""" for name in _metric_columns(names, columns)),
    ]
    return f"create temp view versions as select {', '.join(parts)} from {index.place.schema}.versions v"


def _metric_columns(names: list[str], columns: list[str]) -> list[str]:
    """Metrics that become columns: those whose names need no quotes and are no column's."""
    taken = {*columns, "ref", "aliases"}
    metrics = [name for name in names if name.isidentifier() and name.isascii() and name.lower() not in taken]
    # SQLite allows about 2000 columns in a view.
    return metrics[:COLUMNS]


def _reason(error: Exception, seconds: float) -> str:
    text = str(error)
    if "interrupted" in text:
        return f"the query took more than {seconds:.0f} s and was stopped; make it narrower"
    if "not authorized" in text or "prohibited" in text or "is a view" in text:
        return f"{text}; only reading is allowed: 'select ...'"
    if "no such column" in text:
        return f"{text}; 'shoal models sql \"select * from versions limit 1\"' shows the columns, metrics among them"
    return f"SQLite says: {text}"
