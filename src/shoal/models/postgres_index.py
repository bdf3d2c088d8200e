"""The index of a registry in PostgreSQL: the same tables and statements as in SQLite, in a schema of their own.

    models/index.json             where it is, and the id of this registry
    postgresql://HOST/DB#SCHEMA   tables of docs/registry.md, and `owner`: the id of the one registry they belong to

For backups, rights and queries that a database server gives. Not for sharing one index between hosts: locks and holds
are files in the registry's folder, so a second folder on the same schema is refused. Passwords are not taken in a URL,
because it is written to a file and shown in errors; libpq reads ~/.pgpass and $PGPASSWORD.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from shoal.core.errors import UsageError
from shoal.models.errors import RegistryError
from shoal.models.index import VersionIndex
from shoal.models.schema import SCHEMA, TABLES

if TYPE_CHECKING:
    import psycopg

DEFAULT_SCHEMA = "shoal"
WRITER_LOCK = 0x53484F4D
"""Of `pg_advisory_xact_lock`: writers take turns, as in SQLite."""
CONNECT_SECONDS = 10
TYPES = (
    ("integer primary key autoincrement", "bigint generated always as identity primary key"),
    (" without rowid", ""),
    (" integer", " bigint"),
    (" real", " double precision"),
)
"""What SQLite's tables are called in PostgreSQL."""


class IndexPlace(msgspec.Struct, frozen=True):
    """Where an index is, and which registry it belongs to."""

    index: str
    """The URL, without a password."""
    id: str

    @property
    def schema(self) -> str:
        return urlsplit(self.index).fragment or DEFAULT_SCHEMA

    @property
    def database(self) -> str:
        """What libpq connects to."""
        return urlunsplit(urlsplit(self.index)._replace(fragment=""))


def parse_place(url: str) -> IndexPlace:
    """A place for a new registry; UsageError if the URL names none."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise UsageError(
            f"--index {parts.scheme or url!r} is no PostgreSQL; write postgresql://USER@HOST/DATABASE#SCHEMA"
        )
    if parts.password is not None or "password=" in parts.query:
        raise UsageError("--index has a password, which would be kept in a file; put it into ~/.pgpass or $PGPASSWORD")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", parts.fragment or DEFAULT_SCHEMA):
        raise UsageError(f"--index …#{parts.fragment[:60]} is no name of a schema; use small letters, digits and _")
    return IndexPlace(url, secrets.token_hex(8))


class PostgresConnection:
    """What the index uses of a connection, with SQLite's question marks."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self.raw = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> "psycopg.Cursor[Any]":
        # Bytes, because psycopg's types want literal strings, and these are put together from columns.
        return self.raw.execute(statement.replace("?", "%s").encode(), values or None)

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        self.raw.cursor().executemany(statement.replace("?", "%s").encode(), rows)


class PostgresIndex(VersionIndex):
    """Rows of versions and aliases behind `place.index`."""

    aliases_of_version = "coalesce((select json_agg(alias) from aliases a where {same})::text, '[]')"

    def __init__(self, path: Path, place: IndexPlace) -> None:
        super().__init__(path)
        self.place = place

    def exists(self) -> bool:
        with self._connected() as connection:
            return self._owner(connection) is not None

    def create(self) -> None:
        """Make schema and tables, in one transaction; UsageError if they are another registry's."""
        with self._connected() as connection, connection.raw.transaction():
            connection.execute("select pg_advisory_xact_lock(?)", (WRITER_LOCK,))
            if self._owner(connection) is not None:
                return
            # The name was checked against a pattern in `parse_place`: identifiers cannot be parameters.
            connection.execute(f"create schema if not exists {self.place.schema}")
            connection.execute(postgres_tables())
            connection.execute("create table owner (id text not null, schema bigint not null)")
            connection.execute("insert into owner values (?, ?)", (self.place.id, SCHEMA))

    def _owner(self, connection: PostgresConnection) -> str | None:
        """The registry these tables belong to, which is this one; None if there are no tables."""
        table = f"{self.place.schema}.owner"
        # Null, not an error, for a table that is not there.
        if connection.execute("select to_regclass(?)", (table,)).fetchone() == (None,):
            return None
        row = connection.execute("select id, schema from owner").fetchone()
        if row is None or row[0] != self.place.id:
            raise RegistryError(
                f"{self.place.index} is the index of another registry; name another schema: {self.place.database}#NAME"
            )
        if row[1] > SCHEMA:
            raise RegistryError(
                f"{self.place.index} has schema {row[1]}, this Shoal knows {SCHEMA}; install a newer one"
            )
        return str(row[0])

    @contextmanager
    def _connected(self, create: bool = False) -> Iterator[PostgresConnection]:  # type: ignore[override]
        psycopg = import_driver()
        try:
            # autocommit: transactions begin where the code says so.
            with psycopg.connect(self.place.database, autocommit=True, connect_timeout=CONNECT_SECONDS) as connection:
                connection.execute(f"set search_path to {self.place.schema}".encode())
                yield PostgresConnection(connection)
        except psycopg.Error as error:
            raise RegistryError(f"{self.place.index}: {_first_line(error)}; {_way_out(error)}") from None

    @contextmanager
    def _writing(self) -> Iterator[PostgresConnection]:  # type: ignore[override]
        with self._connected() as connection, connection.raw.transaction():
            connection.execute("select pg_advisory_xact_lock(?)", (WRITER_LOCK,))
            yield connection

    def columns_and_metrics(self) -> tuple[list[str], list[str]]:
        """Columns of the table `versions`, and names of metrics."""
        with self._connected() as connection:
            columns = connection.execute("select * from versions limit 0").description or []
            names = connection.execute("select name from metric_names order by name")
            return [column.name for column in columns], [name for (name,) in names]

    def read_only(
        self, sql: str, view: str, seconds: float, rows: int
    ) -> tuple[list[str] | None, list[tuple[Any, ...]]]:
        """Run one statement that may not write, with `view` as the table `versions`; columns are None if it asks
        nothing. Functions are those the database's role may call."""
        psycopg = import_driver()
        with self._connected() as connection:
            # Before the connection becomes read-only, because a view is made by a write.
            connection.execute(view)
            connection.execute(f"set statement_timeout to {int(1000 * seconds)}")
            connection.execute("set default_transaction_read_only to on")
            try:
                # prepared: the server takes one statement and no more
                cursor = connection.raw.execute(sql.encode(), prepare=True)
                columns = [column.name for column in cursor.description] if cursor.description is not None else None
                return columns, cursor.fetchmany(rows + 1) if columns is not None else []
            except psycopg.errors.QueryCanceled:
                raise UsageError(
                    f"the query took more than {seconds:.0f} s and was stopped; make it narrower"
                ) from None
            except psycopg.errors.ReadOnlySqlTransaction as error:
                raise UsageError(f"{_first_line(error)}; only reading is allowed: 'select ...'") from None
            except (psycopg.errors.ProgrammingError, psycopg.errors.DataError) as error:
                raise UsageError(f"PostgreSQL says: {_first_line(error)}") from None


def postgres_tables() -> str:
    text = TABLES
    for before, after in TYPES:
        text = text.replace(before, after)
    return text


def import_driver() -> Any:
    try:
        import psycopg
    except ImportError:
        raise UsageError(
            "the index is in PostgreSQL and psycopg is not installed; pip install 'shoal[postgres]'"
        ) from None
    return psycopg


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def _way_out(error: Exception) -> str:
    name = type(error).__name__
    if name == "ForeignKeyViolation":
        return "an alias points to it"
    if name == "InsufficientPrivilege":
        return "give this role the right to create a schema, or to use this one"
    return "free some space" if name == "DiskFull" else "does it run, and may you connect? try psql with this URL"
