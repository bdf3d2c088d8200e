"""Crashes, full disks and collections: nothing is half registered, and nothing that is needed goes."""

import errno
import shutil
from pathlib import Path

import pytest
import torch
from test_registry import same, weights

from shoal.core.disk import Buffer, FileOperations
from shoal.core.durable import PART
from shoal.core.errors import UsageError
from shoal.models import Registry, RegistryError
from shoal.models.upkeep import CollectionResult, collect, set_aside, verify
from shoal.testing.crashsim import CrashState, RecordedDisk


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models")


def fixed_names(crash: CrashState) -> str:
    """What a crash left under final names: states that differ only in part files, which nobody reads, are one."""
    tree = crash.tree
    return repr(sorted((name, tree.content.get(node)) for (_, name), node in tree.names.items() if PART not in name))


class TestCrashes:
    def test_every_crash_leaves_the_old_versions_whole_and_the_new_one_whole_or_absent(self, tmp_path: Path) -> None:
        home, old_index = tmp_path / "models", tmp_path / "old"
        Registry(home).add("digits", weights(0))
        shutil.copytree(home, old_index, ignore=shutil.ignore_patterns("blobs"))
        disk = RecordedDisk(home / "blobs")
        disk._nodes[home] = 0  # its parent is there already, and durable
        Registry(home, disk).add("digits", weights(1))
        states = {fixed_names(crash): crash for crash in disk.crashes()}
        assert len(states) >= 4, "no chunk, the chunk, both, and folders without them"
        for number, crash in enumerate(states.values()):
            place = tmp_path / str(number)
            shutil.copytree(old_index, place)  # SQLite is asked last, so whatever happens before, this is the index
            crash.build(place / "blobs")
            after = Registry(place)
            assert [version.ref for version in after.list()] == ["digits:1"], crash.what
            assert same(after.tensors(after.get("digits")), weights(0)), crash.what
            assert same(after.tensors(after.add("digits", weights(1))), weights(1)), crash.what
            shutil.rmtree(place)

    def test_when_the_row_is_committed_no_loss_of_power_takes_a_blob(self, tmp_path: Path) -> None:
        home = tmp_path / "models"
        Registry(home).create()
        (home / "blobs").mkdir()
        disk = RecordedDisk(home / "blobs")
        disk._nodes[home] = 0
        version = Registry(home, disk).add("digits", weights())
        last = [crash for crash in disk.crashes() if f"before call {len(disk.ops)}" in crash.what]
        assert [crash.what for crash in last] == [f"killed before call {len(disk.ops)}"], "all was synced"
        last[0].build(tmp_path / "after")
        assert {path.name for path in (tmp_path / "after").rglob("*") if path.is_file()} == set(
            registry_blobs(Registry(home), version.ref)
        )

    def test_a_damaged_blob_that_a_crash_left_is_written_again(self, registry: Registry) -> None:
        version = registry.add("digits", weights())
        (chunk,) = registry.manifest(version).sizes
        registry.blobs.path(chunk).write_bytes(b"")  # what a careless copy of the folder may have done
        again = registry.add("digits", weights())
        assert same(registry.tensors(again), weights())


def registry_blobs(registry: Registry, ref: str) -> list[str]:
    version = registry.get(ref)
    return [version.digest, *registry.manifest(version).sizes]


class FullDisk(FileOperations):
    """Has room for so many writes, then none."""

    def __init__(self, writes: int) -> None:
        self.left = writes

    def write(self, file: int, data: Buffer) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(file, data)


@pytest.mark.parametrize("room", [0, 1])
def test_a_full_disk_adds_nothing_and_leaves_no_part_file(registry: Registry, room: int) -> None:
    with pytest.raises(RegistryError, match=r"cannot store 'digits' in .*: No space left on device; nothing was added"):
        Registry(registry.root, FullDisk(room)).add("digits", weights())
    assert registry.list() == []
    assert list(registry.blobs.leftovers()) == []
    assert registry.add("digits", weights()).version == 1


class TestVerify:
    def test_it_names_what_is_wrong_and_repairs_by_storing_again(self, registry: Registry) -> None:
        one, two = registry.add("digits", weights(0)), registry.add("digits", weights(1))
        assert verify(registry, registry.list()) == []
        (chunk,) = registry.manifest(two).sizes
        path = registry.blobs.path(chunk)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        registry.blobs.path(one.digest).unlink()
        assert [
            (damage.ref, damage.problem.split(";")[0].split(" in ")[0]) for damage in verify(registry, registry.list())
        ] == [
            ("digits:2", f"blob {chunk[:12]} is damaged: its SHA-256 differs"),
            ("digits:1", f"blob {one.digest[:12]} is missing"),
        ]
        assert set_aside(registry) == 1
        assert registry.add("digits", weights(1)).version == 3
        assert [damage.ref for damage in verify(registry, registry.list())] == ["digits:1"]


class TestCollect:
    def test_what_an_alias_or_a_run_needs_stays(self, registry: Registry) -> None:
        for seed in range(5):
            registry.add("digits", weights(seed))
        registry.add("other", weights(9))
        registry.tag("digits:1", "prod")
        with registry.hold(registry.get("digits:2")):
            plan = collect(registry, keep=1, dry=True)
            assert len(registry.list()) == 6, "a dry collection removes nothing"
            done = collect(registry, keep=1)
        assert done == plan
        assert done.versions == ["digits:4", "digits:3"]
        assert done.blobs == 4
        assert done.bytes > 0
        assert [version.ref for version in registry.list()] == ["other:1", "digits:5", "digits:2", "digits:1"]
        assert verify(registry, registry.list()) == []

    def test_blobs_of_nobody_and_part_files_go(self, registry: Registry) -> None:
        assert collect(registry) == CollectionResult([], 0, 0)
        version = registry.add("digits", weights())
        orphan = registry.blobs.put(b"nobody's")
        part = registry.blobs.path(orphan).with_name(f"{orphan}.0.part")
        part.write_bytes(b"half")
        assert collect(registry) == CollectionResult([], 1, 8)
        assert not part.exists()
        assert same(registry.tensors(version), weights())

    def test_blobs_shared_with_a_version_that_stays_are_kept(self, registry: Registry) -> None:
        big = torch.randn(100_000)
        registry.add("digits", {"frozen": big, "head": torch.zeros(2)})
        new = registry.add("digits", {"frozen": big, "head": torch.ones(2)})
        assert collect(registry, keep=1).versions == ["digits:1"]
        assert torch.equal(registry.tensors(new)["frozen"], big)

    def test_keeping_none_is_refused(self, registry: Registry) -> None:
        with pytest.raises(UsageError, match="--keep 0"):
            collect(registry, keep=0)
