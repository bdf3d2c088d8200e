"""The log: what was appended comes back; a torn tail is cut, other damage is refused; one holder at a time."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.disk import Buffer, FileOperations
from shoal.core.errors import ShoalError
from shoal.membership.key_register import KeyBound
from shoal.membership.log_entries import MemberLost, ViewInstalled, ViewProposed
from shoal.membership.protocol import InstallView
from shoal.membership.view import MembershipView
from shoal.membership.wal import RESERVE, CoordinatorLog, members, read

ENTRIES = [
    ViewProposed(generation=1),
    ViewInstalled(install=InstallView(view=MembershipView(1, ("a", "b")), through=0, fresh=("a", "b"))),
    KeyBound(member="a", key="k" * 40),
    MemberLost(member="b", reason="SIGKILL"),
]


def written(path: Path) -> bytes:
    wal = CoordinatorLog(path)
    for entry in ENTRIES:
        wal.append(entry)
    wal.close()
    return path.read_bytes()


def opened(path: Path) -> list[object]:
    wal = CoordinatorLog(path)
    wal.close()
    return list(wal.past)


def test_what_was_appended_comes_back(tmp_path: Path) -> None:
    written(tmp_path / "log")
    assert opened(tmp_path / "log") == ENTRIES
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_log_cut_anywhere_is_a_prefix_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("wal") / "log"
    whole = written(path)
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))] + bytes(data.draw(st.sampled_from([0, 0, 100]))))
    found = opened(path)
    assert found == ENTRIES[: len(found)]
    wal = CoordinatorLog(path)
    wal.append(ViewProposed(generation=9))
    wal.close()
    assert opened(path) == [*found, ViewProposed(generation=9)]


def test_a_log_says_who_was_alive(tmp_path: Path) -> None:
    written(tmp_path / "log")
    assert members(tmp_path / "log") == ("a",)


def test_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = bytearray(written(path))
    whole[12] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ShoalError, match="is damaged at byte 0 and goes on after it"):
        read(path)


def test_an_entry_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    wal = CoordinatorLog(path)
    wal.append(MembershipView(1, ("a",)))  # type: ignore[arg-type]
    wal.close()
    with pytest.raises(ShoalError, match="what this version cannot read"):
        CoordinatorLog(path)


def test_two_coordinators_never_hold_one_log(tmp_path: Path) -> None:
    wal = CoordinatorLog(tmp_path / "log")
    with pytest.raises(ShoalError, match="held by another coordinator"):
        CoordinatorLog(tmp_path / "log")
    wal.close()
    CoordinatorLog(tmp_path / "log").close()


class NoisyDisk(FileOperations):
    """Notes what is synced; fails as told."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.synced = fails, list[int]()

    def write(self, file: int, data: Buffer) -> None:
        if self.fails == "write":
            super().write(file, bytes(data)[:5])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(file, data)

    def sync(self, file: int) -> None:
        if self.fails == "sync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.synced.append(os.fstat(file).st_size)


def test_what_a_log_holds_is_synced_before_it_is_believed(tmp_path: Path) -> None:
    """Whoever wrote it may have died before it synced."""
    whole = written(tmp_path / "log")
    disk = NoisyDisk()
    CoordinatorLog(tmp_path / "log", disk).close()
    assert disk.synced == [len(whole)]


@pytest.mark.parametrize("fails", ["write", "sync"])
def test_an_entry_that_did_not_become_durable_is_not_there(tmp_path: Path, fails: str) -> None:
    whole = written(tmp_path / "log")
    disk = NoisyDisk()
    wal = CoordinatorLog(tmp_path / "log", disk)
    disk.fails = fails
    with pytest.raises(OSError, match=r"No space|Input/output"):
        wal.append(ENTRIES[0])
    wal.close()
    assert (tmp_path / "log").read_bytes() == whole


def test_room_for_entries_is_kept_on_the_disk(tmp_path: Path) -> None:
    wal = CoordinatorLog(tmp_path / "log")
    status = (tmp_path / "log").stat()
    wal.close()
    assert status.st_size == 0
    assert status.st_blocks * 512 >= RESERVE
