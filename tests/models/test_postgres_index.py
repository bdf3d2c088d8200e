"""The index of a registry in PostgreSQL, on a real server of Debian's in a folder of its own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_registry import same, weights
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.core.errors import UsageError
from shoal.models import Registry, RegistryError
from shoal.models.postgres_index import PostgresIndex
from shoal.models.queries import query, select
from shoal.models.registry import init_registry
from shoal.models.transfer import copy
from shoal.models.upkeep import collect, verify

BINARIES = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/nowhere"))
pytestmark = pytest.mark.skipif(not (BINARIES / "initdb").exists(), reason="needs Debian's postgresql")


class PostgresServer:
    """Listens on a socket in its folder alone; runs as `postgres` where the tests run as root, which it refuses."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._user = folder, "postgres" if os.getuid() == 0 else None
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._call("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "shoal", "--no-sync")
        self.start()

    def _call(self, program: str, *words: str) -> None:
        subprocess.run([BINARIES / program, *words], user=self._user, check=True, cwd=self.folder, stdout=-3, stderr=-3)

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off"
        self._call("pg_ctl", "-D", str(self.folder / "data"), "-o", options, "-w", "-l", "log", "start")

    def stop(self) -> None:
        self._call("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")

    def url(self, schema: str) -> str:
        return f"postgresql://shoal@/postgres?host={self.folder}#{schema}"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        started = PostgresServer(Path(folder))
        yield started
        started.stop()


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return f"s{abs(hash(request.node.nodeid)) % 10**9}"


@pytest.fixture
def registry(server: PostgresServer, tmp_path: Path, schema: str) -> Registry:
    return init_registry(tmp_path / "models", index=server.url(schema))


def test_a_version_comes_back_from_another_process_view(registry: Registry) -> None:
    version = registry.add("digits", weights(), metrics={"accuracy": 0.5}, note="first")
    again = Registry(registry.root)
    assert isinstance(again.index, PostgresIndex)
    assert not (registry.root / "index.sqlite").exists()
    assert again.get("digits") == version
    assert same(again.tensors(version), weights())
    assert verify(again, again.list()) == []


def test_names_aliases_and_changes_are_those_of_sqlite(registry: Registry, tmp_path: Path) -> None:
    def use(kept: Registry) -> object:
        kept.add("digits", weights(1))
        kept.add("digits", weights(2), metrics={"accuracy": 0.9})
        kept.add("other", weights(2))
        kept.add("digits", weights(2), metrics={"accuracy": 0.9})  # equal but for its time
        kept.tag("digits:2", "prod")
        kept.tag("digits:1", "prod")
        kept.tag("digits:2", "best")
        kept.untag("digits@best")
        kept.remove("digits:2")
        rows = [(version.ref, version.aliases, version.metrics, version.weights) for version in kept.list()]
        news = [(change.number, change.what, change.name, change.version, change.alias) for change in kept.changes()]
        return rows, news, len(kept.used(kept.list())), kept.find("digits@none"), kept.get("digits@prod").ref

    assert use(registry) == use(Registry(tmp_path / "plain"))


def test_what_is_wrong_is_said_as_with_sqlite(registry: Registry) -> None:
    registry.add("digits", weights())
    for ref in ("digts", "digits:9", "digits@prod"):
        with pytest.raises(UsageError):
            registry.get(ref)
    registry.tag("digits", "prod")
    with pytest.raises(RegistryError, match="an alias points to it"):
        registry.forget(registry.get("digits"))  # by the index itself, whoever asks
    assert [version.ref for version in registry.list()] == ["digits:1"]


def test_metrics_are_columns_and_writing_is_refused(registry: Registry) -> None:
    for number, accuracy in enumerate((0.9, 0.98, 0.99)):
        registry.add("digits", weights(number), metrics={"accuracy": accuracy})
    registry.tag("digits:2", "prod")
    columns, rows = query(registry, "where accuracy > 0.97 and plan not like '%dgc%' order by bytes, accuracy desc")
    assert [row[columns.index("ref")] for row in rows] == ["digits:3", "digits:2"]
    assert rows[1][columns.index("aliases")] == "prod"
    assert select(registry, "select max(accuracy) from versions")[1] == [(0.99,)]
    for statement in (
        "delete from names",
        "drop table changes",
        "create table x (y int)",
        "update aliases set version=1",
    ):
        with pytest.raises(UsageError, match="only reading is allowed"):
            select(registry, statement)
    with pytest.raises(UsageError, match="PostgreSQL says"):
        select(registry, "select 1; delete from names")
    with pytest.raises(UsageError, match="took more than"):
        select(registry, "select pg_sleep(5)", seconds=0.1)
    with pytest.raises(UsageError, match="accuracee"):
        query(registry, "accuracee > 1")
    assert len(registry.list()) == 3


def test_writers_of_many_threads_get_numbers_of_their_own(registry: Registry) -> None:
    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(lambda n: registry.add("digits", weights(n)).version, range(8)))
    assert sorted(numbers) == list(range(1, 9))


def test_a_writer_that_is_cut_off_leaves_no_version(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.add("digits", weights(1))
    monkeypatch.setattr("shoal.models.index._note", lambda *_: 1 / 0)  # after the row, before the commit
    with pytest.raises(ZeroDivisionError):
        registry.add("digits", weights(2))
    monkeypatch.undo()
    assert [version.ref for version in registry.list()] == ["digits:1"]
    assert collect(registry).blobs > 0  # what it had written
    assert verify(registry, registry.list()) == []
    assert registry.add("digits", weights(2)).ref == "digits:2"


def test_versions_are_copied_between_the_two_kinds(registry: Registry, tmp_path: Path) -> None:
    version = registry.add("digits", weights())
    plain = Registry(tmp_path / "plain")
    copy(registry, plain, version)
    assert plain.get("digits").digest == version.digest


def test_a_schema_belongs_to_one_registry(
    registry: Registry, server: PostgresServer, tmp_path: Path, schema: str
) -> None:
    with pytest.raises(RegistryError, match="is the index of another registry; name another schema"):
        init_registry(tmp_path / "second", index=server.url(schema))
    assert not (tmp_path / "second").exists()


def test_a_server_that_is_down_is_named_and_serves_again(registry: Registry, server: PostgresServer) -> None:
    registry.add("digits", weights())
    server.stop()  # at once, as kill -9 would
    try:
        with pytest.raises(RegistryError, match="does it run, and may you connect"):
            registry.list()
    finally:
        server.start()
    assert [version.ref for version in registry.list()] == ["digits:1"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://x/y", "is no PostgreSQL"),
        ("postgresql://me:secret@host/db", "put it into ~/.pgpass"),
        ("postgresql://host/db?password=secret", "put it into ~/.pgpass"),
        ("postgresql://host/db#no;way", "is no name of a schema"),
    ],
)
def test_a_url_that_cannot_be_an_index(tmp_path: Path, url: str, problem: str) -> None:
    done = CliRunner().invoke(app, ["models", "init", "--index", url, "--models", str(tmp_path / "models")])
    assert (done.exit_code, problem in done.output, "secret" in done.output) == (2, True, False)
    assert not (tmp_path / "models").exists()


def test_the_commands_find_it(server: PostgresServer, tmp_path: Path, schema: str) -> None:
    models = ["--models", str(tmp_path / "models")]
    done = CliRunner().invoke(app, ["models", "init", "--index", server.url(schema), *models])
    assert done.exit_code == 0, done.output
    Registry(tmp_path / "models").add("digits", weights(), metrics={"accuracy": 0.75})
    done = CliRunner().invoke(app, ["models", "sql", "select ref, accuracy from versions", *models])
    assert "digits:1" in done.output
    assert "0.75" in done.output
