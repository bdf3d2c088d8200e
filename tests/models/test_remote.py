"""Versions over pipes: what arrives is checked, and a side that misbehaves is refused."""

import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_registry import same, weights
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.core.errors import UsageError
from shoal.models import Registry, RegistryError
from shoal.models.remote import LONGEST, PipePair, RemoteSource, answer_requests, open_ssh, receive

SECONDS = 30.0


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[PipePair, PipePair]]:
    """Two ends that talk to each other."""
    (read_a, write_a), (read_b, write_b) = os.pipe(), os.pipe()
    files = [
        os.fdopen(each, mode, 0) for each, mode in ((read_a, "rb"), (write_b, "wb"), (read_b, "rb"), (write_a, "wb"))
    ]
    seconds = getattr(request, "param", SECONDS)
    yield PipePair(files[0], files[1], seconds), PipePair(files[2], files[3], seconds)
    for file in files:
        file.close()


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "models")
    registry.add("digits", weights())
    registry.tag("digits", "prod")
    return registry


def test_a_version_arrives_whole(registry: Registry, tmp_path: Path, ends: tuple[PipePair, PipePair]) -> None:
    here, there = ends
    thread = threading.Thread(target=answer_requests, args=(registry, there))
    thread.start()
    other = Registry(tmp_path / "other")
    lines = receive(other, RemoteSource(here), ["digits@prod"], aliases=True)
    thread.join(10)
    assert lines == [f"digits:1 is digits:1 in {other.root}"]
    assert same(other.tensors(other.get("digits@prod")), weights())


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b'{"error": "no such thing"}\n', "the other side says: no such thing"),
        (b"bash: shoal: not found\n", "gives no answer"),
        (b'{"size": -1}\n', "does not describe"),
        (b"x" * (LONGEST + 2), "a line of more than"),
    ],
)
def test_a_side_that_misbehaves_is_refused(
    tmp_path: Path, ends: tuple[PipePair, PipePair], said: bytes, message: str
) -> None:
    here, there = ends
    writer = threading.Thread(target=there.write, args=(said,))
    writer.start()
    with pytest.raises(RegistryError, match=message):
        receive(Registry(tmp_path / "other"), RemoteSource(here), ["digits"], aliases=False)
    writer.join(10)


def test_a_blob_of_another_content_is_not_stored(registry: Registry, tmp_path: Path) -> None:
    version, other = registry.get("digits"), Registry(tmp_path / "other")
    manifest = registry.blobs.read(version.digest)
    with pytest.raises(RegistryError, match="is damaged there; nothing was added"):
        other.adopt("digits", version.digest, lambda digest: manifest if digest == version.digest else b"other")
    with pytest.raises(RegistryError, match="is not the manifest"):
        other.adopt("digits", "0" * 64, lambda digest: manifest)
    assert other.list() == []


@pytest.mark.parametrize("ends", [0.05], indirect=True)
def test_silence_ends_by_a_deadline(ends: tuple[PipePair, PipePair]) -> None:
    here, there = ends
    with pytest.raises(RegistryError, match="said nothing for"):
        RemoteSource(here).version("digits")
    assert there.line() == b"version digits"


@pytest.mark.parametrize("url", ["ssh://", "ssh://host", "ssh://-oProxyCommand=x/models"])
def test_an_address_is_checked(url: str) -> None:
    with pytest.raises(UsageError, match="is not ssh://"):
        open_ssh(url, "answer")


def test_push_and_pull_over_ssh(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ssh` is a script that drops its options and runs the command here."""
    fake = tmp_path / "bin" / "ssh"
    fake.parent.mkdir()
    here = Path(sys.executable).parent
    skip = 'while [ "$1" != -- ]; do shift; done; shift 2'
    fake.write_text(f'#!/bin/sh\n{skip}\nPATH={here}:$PATH\neval "$1"\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    monkeypatch.setenv("SHOAL_MODELS", str(registry.root))
    there = f"ssh://host{tmp_path}/far%20away"
    done = CliRunner().invoke(app, ["models", "push", "digits@prod", "--to", there, "--aliases"])
    assert done.exit_code == 0, done.output
    far = Registry(tmp_path / "far away")
    assert far.get("digits").digest == registry.get("digits").digest
    done = CliRunner().invoke(app, ["models", "pull", "digits", "--from", there, "--models", str(tmp_path / "third")])
    assert done.output == f"digits:1 is digits:1 in {tmp_path / 'third'}\n"
    done = CliRunner().invoke(app, ["models", "pull", "absent", "--from", there])
    assert (done.exit_code, done.output.startswith("shoal: the other side says: no model 'absent'")) == (1, True)
