"""Blobs behind an fsspec URL: in memory, and in a real S3 server."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer
from test_registry import same, weights
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.core.errors import UsageError
from shoal.models import Registry, RegistryError
from shoal.models.registry import init_registry
from shoal.models.remote_blobs import RemoteBlobs
from shoal.models.transfer import copy
from shoal.models.upkeep import collect, set_aside, verify


@pytest.fixture(scope="module")
def s3() -> Iterator[None]:
    """An S3 server on a port of its own, which s3fs finds by the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", address)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3", use_listings_cache=False).mkdir("bucket")
        yield
    server.stop()


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    request.getfixturevalue("s3")
    return f"s3://bucket/{tmp_path.name}"


def test_a_version_comes_back_and_is_checked(place: str, tmp_path: Path) -> None:
    registry = init_registry(tmp_path / "models", place)
    version = registry.add("digits", weights(), files={"model.onnx": b"x" * 9}, metrics={"accuracy": 0.5})
    again = Registry(tmp_path / "models")
    assert isinstance(again.blobs, RemoteBlobs)
    assert not (tmp_path / "models" / "blobs").exists()
    assert same(again.tensors(again.get("digits")), weights())
    assert again.file(version, "model.onnx") == b"x" * 9
    assert verify(again, again.list()) == []
    files, prefix = fsspec.core.url_to_fs(place)
    chunk = again.manifest(version).tensors[0].chunks[0]
    files.pipe_file(f"{prefix}/{chunk[:2]}/{chunk}", again.blobs.read(chunk)[:-1] + b"!")
    with pytest.raises(RegistryError, match=f"blob {chunk[:12]} is damaged"):
        again.tensors(version)
    assert set_aside(again) == 1
    assert [damage.problem.split(" in ")[0] for damage in verify(again, again.list())] == [
        f"blob {chunk[:12]} is missing"
    ]
    registry.add("digits", weights(), files={"model.onnx": b"x" * 9})
    assert verify(again, again.list()) == []


def test_copies_and_collections(place: str, tmp_path: Path) -> None:
    here, there = Registry(tmp_path / "here"), init_registry(tmp_path / "there", place)
    for seed in range(3):
        copy(here, there, here.add("digits", weights(seed)))
    back = Registry(tmp_path / "back")
    copy(there, back, there.get("digits:2"))
    assert same(back.tensors(back.get("digits")), weights(1))
    assert collect(there, keep=1).versions == ["digits:2", "digits:1"]
    assert len(list(there.blobs.digests())) == 2, "a chunk and a manifest"
    assert same(there.tensors(there.get("digits")), weights(2))


def test_a_place_belongs_to_one_registry(place: str, tmp_path: Path) -> None:
    words = ["models", "init", "--blobs", place, "--models"]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "one")])
    assert (done.exit_code, done.output) == (0, f"{tmp_path / 'one'} is a registry with its blobs in {place}\n")
    done = CliRunner().invoke(app, [*words, str(tmp_path / "two")])
    assert (done.exit_code, "holds the blobs of another registry" in done.output) == (2, True)
    assert not (tmp_path / "two").exists()
    done = CliRunner().invoke(app, [*words, str(tmp_path / "one")])
    assert (done.exit_code, "is a registry already" in done.output) == (2, True)
    done = CliRunner().invoke(app, ["models", "pack", "--models", str(tmp_path / "one")])
    assert (done.exit_code, "cannot be packed" in done.output) == (2, True)


def test_a_store_that_fails_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = init_registry(tmp_path / "models", f"memory://{tmp_path.name}")

    def fail(*_: object) -> None:
        raise ConnectionError("no route to the store")

    with monkeypatch.context() as patch:
        patch.setattr("fsspec.implementations.memory.MemoryFileSystem.pipe_file", fail)
        with pytest.raises(RegistryError, match="failed: no route to the store"):
            registry.add("digits", weights())
    assert registry.list() == []
    assert registry.add("digits", weights()).version == 1


@pytest.mark.parametrize(
    ("url", "message"), [("folder", "is no URL"), ("nonsense://x", "is no place for blobs|needs a library")]
)
def test_a_wrong_place_is_refused(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        init_registry(tmp_path / "models", url)
    assert not (tmp_path / "models").exists()
