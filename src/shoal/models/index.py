"""The index of a registry: one SQLite file in WAL mode. A version exists when its row is committed, and not before.

A connection lives for one operation, so that nothing is shared over a fork or between threads; opening one takes
less than a millisecond. Writers take turns (`begin immediate`), readers never wait for them.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec

from shoal.core.disk import DISK
from shoal.core.errors import UsageError
from shoal.core.suggest import hint
from shoal.models.errors import RegistryError
from shoal.models.schema import APPLICATION, SCHEMA, TABLES
from shoal.models.version import Manifest, ModelRef, ModelVersion

BUSY = 30.0
"""Seconds a writer waits for its turn."""

_COLUMNS = [name for name in ModelVersion.__struct_fields__ if name != "aliases"]
_SAME = "a.name = v.name and a.version = v.version"


class VersionChange(msgspec.Struct, frozen=True):
    """One change of a registry, in order of `number`: `added`, `removed`, `tagged` or `untagged`."""

    number: int
    at: float
    what: str
    name: str
    version: int
    alias: str


class VersionIndex:
    """Rows of versions and aliases in `path`; made by `create`, empty for readers before that."""

    aliases_of_version = "(select json_group_array(alias) from aliases a where {same})"
    """A JSON list, in the database's own words."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def _select(self) -> str:
        columns = [*(f"v.{name}" for name in _COLUMNS), self.aliases_of_version.format(same=_SAME)]
        return f"select {', '.join(columns)} from versions v"

    def exists(self) -> bool:
        """Whether its tables are there."""
        if not self.path.is_file():
            return False
        with self._connected() as connection:
            return _schema(connection, self.path) == SCHEMA

    def create(self) -> None:
        """Make file and tables; one process at a time."""
        with self._connected(create=True) as connection:
            if _schema(connection, self.path) == SCHEMA:
                return
            # Outside of a transaction: SQLite refuses to change the mode in one.
            connection.execute("pragma journal_mode = wal")
            with connection:
                connection.execute("begin immediate")
                for statement in TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"pragma application_id = {APPLICATION}")
                connection.execute(f"pragma user_version = {SCHEMA}")
        # The file's name is durable only once its folder is synced.
        DISK.sync_folder(self.path.parent)

    @contextmanager
    def _connected(self, create: bool = False) -> Iterator[sqlite3.Connection]:
        mode = "rwc" if create else "rw"
        try:
            uri = f"{self.path.absolute().as_uri()}?mode={mode}"
            # isolation_level=None: transactions begin where the code says so, not where sqlite3 guesses.
            with closing(sqlite3.connect(uri, uri=True, timeout=BUSY, isolation_level=None)) as connection:
                # In WAL mode SQLite's default may lose the last commits with the power; a version that was seen must
                # stay.
                connection.execute("pragma synchronous = full")
                # Off by default and set per connection; it keeps a version with an alias from being removed.
                connection.execute("pragma foreign_keys = on")
                yield connection
        except sqlite3.Error as error:
            raise RegistryError(f"{self.path}: {error}; {_way_out(error)}") from None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._connected() as connection, connection:
            connection.execute("begin immediate")
            yield connection

    def add(self, name: str, digest: str, manifest: Manifest, blobs: dict[str, int]) -> int:
        """Commit a version whose blobs are durable; returns its number. The same digest again keeps its number."""
        with self._writing() as connection:
            found = connection.execute(
                "select version from versions where name = ? and digest = ?", (name, digest)
            ).fetchone()
            if found:
                return int(found[0])
            connection.execute(
                # Counted apart from the rows, so that the number of a removed version is never given again.
                "insert into names values (?, 1) on conflict (name) do update set last = names.last + 1",
                (name,),
            )
            (number,) = connection.execute("select last from names where name = ?", (name,)).fetchone()
            row = _row(name, number, digest, manifest)
            marks = ", ".join("?" * len(row))
            (number_of_row,) = connection.execute(
                f"insert into versions ({', '.join(row)}) values ({marks}) returning id", tuple(row.values())
            ).fetchone()
            uses = [(number_of_row, blob, size) for blob, size in blobs.items()]
            connection.executemany("insert into uses values (?, ?, ?)", uses)
            metrics = [(metric,) for metric in manifest.metrics]
            connection.executemany("insert into metric_names values (?) on conflict do nothing", metrics)
            _note(connection, "added", name, number)
            return int(number)

    def find(self, ref: ModelRef) -> ModelVersion | None:
        if not self.exists():
            return None
        where, values = "v.name = ?", [cast("str | int", ref.name)]
        with self._connected() as connection:
            if ref.version is not None:
                where, values = where + " and v.version = ?", [*values, ref.version]
            elif ref.alias is not None:
                where += " and v.version = (select version from aliases where name = v.name and alias = ?)"
                values.append(ref.alias)
            row = connection.execute(f"{self._select} where {where} order by v.version desc limit 1", values).fetchone()
            return _version(row) if row else None

    def by_digest(self, digest: str) -> ModelVersion | None:
        with self._connected() as connection:
            row = connection.execute(f"{self._select} where v.digest = ? order by v.id limit 1", (digest,)).fetchone()
            return _version(row) if row else None

    def select(self, name: str | None = None) -> list[ModelVersion]:
        """Newest first."""
        if not self.exists():
            return []
        where, values = ("where v.name = ?", (name,)) if name is not None else ("", ())
        with self._connected() as connection:
            rows = connection.execute(f"{self._select} {where} order by v.id desc", values)
            return [_version(row) for row in rows]

    def missing(self, ref: ModelRef, text: str) -> UsageError:
        """What to say of a reference that is not there."""
        if not self.exists():
            return UsageError(f"no model {text!r}: there is no registry in {self.path.parent}; set SHOAL_MODELS")
        with self._connected() as connection:
            names = [name for (name,) in connection.execute("select distinct name from versions")]
            if ref.name not in names:
                way_out = hint(ref.name, names, "'shoal models ls' lists what there is")
                return UsageError(f"no model {ref.name!r} in {self.path.parent}; {way_out}")
            aliases = [a for (a,) in connection.execute("select alias from aliases where name = ?", (ref.name,))]
        if ref.alias is not None:
            return UsageError(f"{ref.name!r} has no alias {ref.alias!r}; it has {', '.join(aliases) or 'none'}")
        return UsageError(f"no version {ref.version} of {ref.name!r}; 'shoal models ls {ref.name}' lists them")

    def tag(self, version: ModelVersion, alias: str) -> None:
        with self._writing() as connection:
            connection.execute(
                "insert into aliases values (?, ?, ?, ?) on conflict (name, alias) "
                "do update set version = excluded.version, changed = excluded.changed",
                (version.name, alias, version.version, time.time()),
            )
            _note(connection, "tagged", version.name, version.version, alias)

    def untag(self, version: ModelVersion, alias: str) -> None:
        with self._writing() as connection:
            connection.execute("delete from aliases where name = ? and alias = ?", (version.name, alias))
            _note(connection, "untagged", version.name, version.version, alias)

    def remove(self, version: ModelVersion) -> None:
        """Forget a version; refused, by the index itself, while an alias points to it."""
        with self._writing() as connection:
            connection.execute("delete from versions where name = ? and version = ?", (version.name, version.version))
            _note(connection, "removed", version.name, version.version)

    def used(self, versions: set[tuple[str, int]]) -> set[str]:
        """Digests of the blobs that these versions need."""
        with self._connected() as connection:
            rows = connection.execute(
                "select v.name, v.version, u.blob from uses u join versions v on v.id = u.version"
            )
            return {blob for name, number, blob in rows if (name, number) in versions}

    def changes(self, since: int = 0) -> list[VersionChange]:
        if not self.exists():
            return []
        with self._connected() as connection:
            rows = connection.execute("select * from changes where number > ? order by number", (since,))
            return [VersionChange(*row) for row in rows]


def _schema(connection: sqlite3.Connection, path: Path) -> int:
    """0 of a new file; RegistryError if this is not a registry of ours, or a newer one."""
    # in one transaction: another process may be making the tables right now
    with connection:
        connection.execute("begin")
        (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
        (schema,) = connection.execute("pragma user_version").fetchone()
        (owner,) = connection.execute("pragma application_id").fetchone()
    if owner != APPLICATION and tables:
        raise RegistryError(f"{path} is another program's database; set SHOAL_MODELS to another folder")
    if schema > SCHEMA:
        raise RegistryError(f"{path} has schema {schema}, this Shoal knows {SCHEMA}; install a newer Shoal")
    return int(schema)


def _way_out(error: sqlite3.Error) -> str:
    text = str(error)
    if "full" in text:
        return "free some space"
    if "FOREIGN KEY" in text:
        return "an alias points to it"
    return "wait for the other writer" if "locked" in text else "is it a registry, and may you write there?"


def _row(name: str, number: int, digest: str, manifest: Manifest) -> dict[str, Any]:
    lineage = msgspec.to_builtins(manifest.lineage)
    # In the manifest alone: the table has no column for it.
    lineage.pop("versions")
    row = {
        "name": name,
        "version": number,
        "digest": digest,
        "weights": manifest.weights,
        "created": manifest.created,
        "kind": manifest.kind,
        "bytes": manifest.total_bytes,
        "parameters": manifest.parameters,
        **lineage,
        "metrics": manifest.metrics,
        "note": manifest.note,
    }
    return {k: msgspec.json.encode(v).decode() if isinstance(v, dict | list) else v for k, v in row.items()}


def _version(row: tuple[Any, ...]) -> ModelVersion:
    fields = dict(zip(_COLUMNS, row, strict=False))
    fields["metrics"] = msgspec.json.decode(fields["metrics"])
    return ModelVersion(**fields, aliases=sorted(msgspec.json.decode(row[-1])))


def _note(connection: sqlite3.Connection, what: str, name: str, version: int, alias: str = "") -> None:
    connection.execute(
        "insert into changes (at, what, name, version, alias) values (?, ?, ?, ?, ?)",
        (time.time(), what, name, version, alias),
    )
