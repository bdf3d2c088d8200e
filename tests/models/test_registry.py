"""A registry keeps versions whole: what can be seen verifies, whoever writes and however it ends."""

import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from shoal.core.errors import UsageError
from shoal.models import Lineage, Registry, RegistryError
from shoal.models.chunks import LARGEST, SMALL
from shoal.models.index import VersionIndex


def weights(seed: int = 0, size: int = 8) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"a.weight": torch.randn(size, size, generator=generator), "a.bias": torch.randn(size, generator=generator)}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(
        torch.equal(one[n], other[n]) and one[n].dtype == other[n].dtype for n in one
    )


class TestVersions:
    def test_a_version_comes_back_bit_by_bit(self, registry: Registry) -> None:
        tensors = {
            "large": torch.randn(SMALL // 4 + 7),
            "data": torch.tensor(3.0),
            "cut": torch.arange(LARGEST + 5, dtype=torch.int8),
            "half": torch.randn(3, 2).bfloat16().t(),
            "none": torch.empty(0, 4),
            "count": torch.tensor(7),
            "flags": torch.tensor([True, False]),
        }
        version = registry.add("digits", tensors, metrics={"accuracy": 0.5})
        assert (version.ref, version.metrics, version.kind) == ("digits:1", {"accuracy": 0.5}, "weights")
        assert version.parameters == sum(tensor.numel() for tensor in tensors.values())
        assert same(registry.tensors(version), tensors)

    def test_numbers_count_up_and_are_never_used_again(self, registry: Registry) -> None:
        for seed in range(3):
            registry.add("digits", weights(seed))
        registry.add("other", weights())
        registry.remove("digits:3")
        assert registry.add("digits", weights(4)).version == 4
        assert [version.ref for version in registry.list()] == ["digits:4", "other:1", "digits:2", "digits:1"]
        assert [version.version for version in registry.list("digits")] == [4, 2, 1]

    def test_lineage_and_files_are_kept(self, registry: Registry) -> None:
        first = registry.add("digits", weights(), lineage=Lineage(run="one", plan="dgc(0.01)", step=5))
        second = registry.add(
            "digits", weights(1), lineage=Lineage(parent=first.digest), files={"model.onnx": b"x" * 9}
        )
        third = registry.add("fine", weights(2), lineage=Lineage(parent=second.digest))
        assert [version.ref for version in registry.lineage(third)] == ["digits:2", "digits:1"]
        assert (first.run, first.plan, first.step) == ("one", "dgc(0.01)", 5)
        assert registry.file(second, "model.onnx") == b"x" * 9
        with pytest.raises(UsageError, match=r"digits:2 has no file 'a.pt'; it has model.onnx"):
            registry.file(second, "a.pt")

    @pytest.mark.parametrize(
        ("ref", "message"),
        [
            ("digit", "did you mean 'digits'"),
            ("digits:9", "no version 9 of 'digits'"),
            ("digits:x", "is not a version number"),
            ("digits@prod", "has no alias 'prod'; it has best"),
            ("../up", "is not an id"),
            ("digits@", "is not an id"),
        ],
    )
    def test_a_reference_that_is_not_there_says_what_is(self, registry: Registry, ref: str, message: str) -> None:
        registry.add("digits", weights())
        registry.tag("digits", "best")
        with pytest.raises(UsageError, match=message):
            registry.get(ref)

    def test_reading_makes_nothing(self, registry: Registry) -> None:
        assert registry.list() == []
        assert registry.changes() == []
        assert registry.find("digits") is None
        with pytest.raises(UsageError, match="there is no registry in"):
            registry.get("digits")
        assert not registry.root.exists()

    @pytest.mark.parametrize("tensor", [torch.eye(3).to_sparse(), torch.zeros(2, dtype=torch.complex64)])
    def test_tensors_it_cannot_hold_are_named(self, registry: Registry, tensor: torch.Tensor) -> None:
        with pytest.raises(UsageError, match="'odd' is a tensor"):
            registry.add("digits", {"odd": tensor})
        assert registry.list() == []

    def test_another_programs_database_and_a_newer_schema_are_refused(self, registry: Registry) -> None:
        registry.add("digits", weights())
        for change, message in [("user_version = 99", "has schema 99"), ("application_id = 7", "another program's")]:
            with sqlite3.connect(registry.root / "index.sqlite") as connection:
                connection.execute(f"pragma {change}")
            with pytest.raises(RegistryError, match=message):
                registry.list()
            with sqlite3.connect(registry.root / "index.sqlite") as connection:
                connection.execute("pragma user_version = 1")


class TestAliases:
    def test_an_alias_moves_and_protects_what_it_points_to(self, registry: Registry) -> None:
        for seed in range(2):
            registry.add("digits", weights(seed))
        assert registry.tag("digits:1", "prod").aliases == ["prod"]
        with pytest.raises(UsageError, match="digits:1 is digits@prod; first"):
            registry.remove("digits:1")
        registry.tag("digits:2", "prod")
        assert registry.get("digits@prod").version == 2
        registry.remove("digits:1")
        registry.untag("digits@prod")
        assert registry.find("digits@prod") is None
        told = [(change.what, change.version, change.alias) for change in registry.changes()]
        assert told[2:] == [("tagged", 1, "prod"), ("tagged", 2, "prod"), ("removed", 1, ""), ("untagged", 2, "prod")]
        assert registry.changes(since=told.index(("removed", 1, "")) + 1)[0].what == "untagged"

    def test_who_follows_an_alias_sees_every_version_it_settles_on(self, registry: Registry) -> None:
        for seed in range(2):
            registry.add("digits", weights(seed))
        registry.tag("digits:1", "prod")
        stop = threading.Event()
        seen = []
        for version in registry.follow("digits@prod", interval=0.001, stop=stop):
            seen.append(version.version)
            if len(seen) == 3:
                stop.set()
            else:
                registry.tag("digits:2" if len(seen) == 1 else "digits:1", "prod")
        assert seen == [1, 2, 1]

    def test_a_version_in_use_is_not_removed(self, registry: Registry) -> None:
        version = registry.add("digits", weights())
        with registry.hold(version), pytest.raises(UsageError, match="in use by a run or server"):
            registry.remove("digits:1")
        registry.remove("digits:1")


class TestDeduplication:
    def test_snapshots_with_a_frozen_backbone_take_half_of_their_size(self, registry: Registry) -> None:
        model = nn.Sequential(*(nn.Linear(300, 300) for _ in range(4)))
        versions = []
        for _ in range(5):
            with torch.no_grad():
                model[3].weight += 0.1
            versions.append(registry.add("digits", model.state_dict()))
        stored = sum(registry.blobs.size(digest) or 0 for digest in registry.blobs.digests())
        assert stored <= 0.5 * sum(version.bytes for version in versions)

    def test_tied_and_renamed_weights_are_stored_once(self, registry: Registry) -> None:
        tied = torch.randn(SMALL // 2)
        registry.add("digits", {"embedding": tied, "head": tied})
        before = set(registry.blobs.digests())
        registry.add("renamed", {"other": tied})
        assert (len(before), len(set(registry.blobs.digests()) - before)) == (2, 1), "one chunk, a manifest each"


class TestDamage:
    def test_a_damaged_blob_is_refused_by_name(self, registry: Registry) -> None:
        version = registry.add("digits", weights())
        (chunk,) = registry.manifest(version).sizes
        path = registry.blobs.path(chunk)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        with pytest.raises(RegistryError, match=f"blob {chunk[:12]} is damaged"):
            registry.tensors(version)
        path.unlink()
        with pytest.raises(RegistryError, match="is missing"):
            registry.tensors(version)

    @pytest.mark.parametrize("name", ["../../etc", "ab", "A" * 64])
    def test_a_digest_is_never_a_path(self, registry: Registry, name: str) -> None:
        with pytest.raises(RegistryError, match="is not a SHA-256"):
            registry.blobs.read(name)


def forked(body: object) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()  # type: ignore[operator]
            os._exit(0)
        finally:
            os._exit(1)
    return pid


class TestProcesses:
    def test_writers_at_the_same_time_lose_nothing(self, registry: Registry) -> None:
        def write(number: int) -> None:
            for seed in range(6):
                Registry(registry.root).add("digits", weights(10 * number + seed), metrics={"writer": number})

        pids = [forked(lambda number=number: write(number)) for number in range(4)]
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
        versions = registry.list("digits")
        assert sorted(version.version for version in versions) == list(range(1, 25))
        assert all(registry.tensors(version) for version in versions)

    @pytest.mark.parametrize("after", ["sqlite_master", "user_version", "application_id"])
    def test_a_reader_beside_the_making_of_the_tables_sees_none_or_all(
        self, registry: Registry, monkeypatch: pytest.MonkeyPatch, after: str
    ) -> None:
        """Each look at the file is one state of it, whatever another process writes in the middle."""
        index, connect = VersionIndex(registry.root / "index.sqlite"), sqlite3.connect
        registry.root.mkdir(parents=True)
        with closing(connect(index.path)) as connection:
            connection.execute("pragma journal_mode = wal")

        class Interrupted(sqlite3.Connection):
            def execute(self, sql: str, *values: object) -> sqlite3.Cursor:
                found = super().execute(sql, *values)
                if after in sql:
                    monkeypatch.setattr(sqlite3, "connect", connect)
                    VersionIndex(index.path).create()
                return found

        monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Interrupted))
        assert not index.exists()
        assert index.exists()

    def test_a_writer_that_is_killed_leaves_whole_versions_only(self, registry: Registry) -> None:
        def write() -> None:
            for seed in range(10**6):
                Registry(registry.root).add("digits", weights(seed, 300))

        for attempt in range(4):
            pid, before = forked(write), len(registry.list())
            deadline = time.monotonic() + 30
            while len(registry.list()) == before and time.monotonic() < deadline:
                time.sleep(0.001 * attempt)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            assert all(registry.tensors(version) for version in registry.list()[:5])
        newest = registry.list()[0].version
        assert registry.add("digits", weights()).version == newest + 1
