"""Notices of live runs: written whole, read by their owner, swept when their launcher is gone."""

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from shoal.core.process import HostProcess
from shoal.launch.live_runs import RunNotice, live, own_namespace, post, remove


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "shoal"


def notice(launcher: HostProcess, **more: object) -> RunNotice:
    fields = {"run": "one", "dir": "runs/one", "plan": "allreduce", "since": 1.0, "board": 0}
    return RunNotice(launcher=launcher, namespace=own_namespace(), **(fields | more))


def dead() -> HostProcess:
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    process = HostProcess.of(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return process


def test_a_notice_is_found_until_it_is_removed(place: Path) -> None:
    mine = notice(HostProcess.of(os.getpid()))
    post(mine)
    post(msgspec.structs.replace(mine, stopping=True))
    assert live() == [msgspec.structs.replace(mine, stopping=True)]
    assert [path.name for path in place.iterdir()] == [f"one@{os.getpid()}.json"]
    remove(mine.name)
    assert live() == []
    assert not place.exists()


def test_what_a_killed_run_left_is_swept(place: Path, tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o700)
    (sockets / "coordinator").touch()
    post(notice(dead(), coordinator=dead(), folder=str(sockets)))
    assert live() == []
    assert not place.exists()
    assert not sockets.exists()


def test_a_coordinator_that_still_lives_tidies_up_itself(place: Path, tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o700)
    post(notice(dead(), coordinator=HostProcess.of(os.getpid()), folder=str(sockets)))
    assert live() == []
    assert sockets.exists()


def test_other_files_are_not_believed(place: Path) -> None:
    post(notice(HostProcess.of(os.getpid())))
    raw = (place / f"one@{os.getpid()}.json").read_bytes()
    for name, data in {
        "two@1.json": raw,  # a file of another name than it says
        "three@1.json": b"{}",
        "four@1.json": b"\xff" * 100,
        "five.json": raw,
    }.items():
        (place / name).write_bytes(data)
    assert [found.run for found in live()] == ["one"]


def test_a_container_that_shares_the_folder_is_left_alone(place: Path) -> None:
    post(msgspec.structs.replace(notice(dead()), namespace="pid:[1]"))
    assert live() == []
    assert len(list(place.iterdir())) == 1


def test_the_oldest_comes_first(place: Path) -> None:
    for run, since in (("b", 5.0), ("a", 6.0), ("c", 4.0)):
        post(notice(HostProcess.of(os.getpid()), run=run, since=since))
    assert [found.run for found in live()] == ["c", "b", "a"]


def test_a_board_that_is_not_there(place: Path) -> None:
    assert notice(HostProcess.of(os.getpid()), board=9999).read_board() is None
    with open(os.devnull) as file:
        assert notice(HostProcess.of(os.getpid()), board=file.fileno()).read_board() is None
    assert notice(dead()).read_board() is None


def test_ends_within_the_race_for_the_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run takes the empty folder away between our making it and our writing to it."""
    rename, taken = Path.rename, []

    def once(self: Path, target: Path) -> Path:
        if not taken:
            taken.append(time.monotonic())
            self.unlink()
            place.rmdir()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", once)
    post(notice(HostProcess.of(os.getpid())))
    assert taken
    assert len(live()) == 1
