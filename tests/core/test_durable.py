"""What the one writer promises, on every state a crash may leave."""

import errno
import os
from pathlib import Path

import pytest

from shoal.core.disk import FileOperations
from shoal.core.durable import publish_folder, write_file, write_new
from shoal.core.log import ChecksummedLog, read_log
from shoal.testing.crashsim import RecordedDisk


def test_a_file_holds_the_old_or_the_new_content(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "state").write_bytes(b"old" * 9)
    disk = RecordedDisk(home)
    write_file(home / "state", b"new" * 9, disk)
    seen = set()
    for number, crash in enumerate(disk.crashes()):
        crash.build(tmp_path / str(number))
        seen.add((tmp_path / str(number) / "state").read_bytes())
    assert seen == {b"old" * 9, b"new" * 9}


@pytest.mark.parametrize("careless", ["in place", "no sync"])
def test_crashsim_finds_what_a_careless_writer_loses(tmp_path: Path, careless: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "state").write_bytes(b"old" * 9)
    disk = RecordedDisk(home)
    target = home / ("state" if careless == "in place" else "part")
    file = disk.create(target)
    disk.write(file, b"new" * 9)
    disk.close(file)
    if careless == "no sync":
        disk.rename(target, home / "state")
    bad = 0
    for number, crash in enumerate(disk.crashes()):
        crash.build(tmp_path / str(number))
        bad += (tmp_path / str(number) / "state").read_bytes() not in (b"old" * 9, b"new" * 9)
    assert bad > 0


def test_after_the_writer_returned_nothing_is_lost(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path)
    write_file(tmp_path / "state", b"new", disk)
    last = [crash for crash in disk.crashes() if crash.what.endswith(f"call {len(disk.ops)}")]
    assert [crash.tree.content[1] for crash in last] == [b"new"]


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    disk = RecordedDisk(home)
    disk.make_folder(home / "x.part")
    for name in ("a", "b"):
        write_new(home / "x.part" / name, [b"1" * 50, b"2" * 50], disk)
    publish_folder(home / "x.part", home / "x", disk)
    for number, crash in enumerate(disk.crashes()):
        crash.build(tmp_path / str(number))
        final = tmp_path / str(number) / "x"
        if final.exists():
            found = {path.name: path.read_bytes() for path in final.iterdir()}
            assert found == dict.fromkeys("ab", b"1" * 50 + b"2" * 50)


class FullDisk(FileOperations):
    """Has no room after some calls of one kind."""

    def __init__(self, method: str, code: int) -> None:
        self.method, self.code = method, code

    def write(self, file: int, data: object) -> None:
        if self.method == "write":
            os.write(file, bytes(memoryview(data))[:3])  # type: ignore[arg-type]
            raise OSError(self.code, os.strerror(self.code))
        super().write(file, data)  # type: ignore[arg-type]

    def sync(self, file: int) -> None:
        if self.method == "sync":
            raise OSError(self.code, os.strerror(self.code))
        super().sync(file)


@pytest.mark.parametrize(("method", "code"), [("write", errno.ENOSPC), ("sync", errno.EIO)])
def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path: Path, method: str, code: int) -> None:
    (tmp_path / "state").write_bytes(b"old")
    with pytest.raises(OSError) as error:
        write_file(tmp_path / "state", b"new", FullDisk(method, code))
    assert error.value.errno == code
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"state": b"old"}


RECORDS = [b"a" * 10, b"", b"b" * 300, b"c"]


def test_a_log_gives_back_a_prefix_and_all_that_was_synced(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    disk = RecordedDisk(home)
    log = ChecksummedLog(home / "log", disk)
    synced_at = []
    for record in RECORDS:
        log.append(record)
        log.sync()
        synced_at.append(len(disk.ops))
    log.close()
    for number, crash in enumerate(disk.crashes()):
        folder = tmp_path / str(number)
        crash.build(folder)
        found = list(read_log(folder / "log"))
        assert found == RECORDS[: len(found)], crash.what
        moment = int(crash.what.partition(":")[0].rpartition(" ")[2])
        assert len(found) >= sum(at <= moment for at in synced_at), crash.what
        again = ChecksummedLog(folder / "log")
        again.append(b"after")
        again.close()
        assert list(read_log(folder / "log")) == [*found, b"after"]


def test_a_log_stops_at_damage(tmp_path: Path) -> None:
    log = ChecksummedLog(tmp_path / "log")
    for record in RECORDS:
        log.append(record)
    log.close()
    whole = (tmp_path / "log").read_bytes()
    for place in range(len(whole)):
        (tmp_path / "log").write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        found = list(read_log(tmp_path / "log"))
        assert found == RECORDS[: len(found)]
        assert len(found) < len(RECORDS)


def test_records_of_a_log_are_synced_before_they_are_believed(tmp_path: Path) -> None:
    """Whoever wrote them may have died before it synced."""

    class Noting(FileOperations):
        synced = 0

        def sync(self, file: int) -> None:
            self.synced = os.fstat(file).st_size

    first = ChecksummedLog(tmp_path / "log")
    first.append(b"a record")
    first.close()
    disk = Noting()
    ChecksummedLog(tmp_path / "log", disk).close()
    assert disk.synced == (tmp_path / "log").stat().st_size > 0
