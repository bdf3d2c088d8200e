"""What runs of one host tell each other: only what living processes of this user have written lately counts."""

import math
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.errors import UsageError
from shoal.hosts.job_board import _BUSY, _LEFT, _MAGIC, _WRITTEN, FRESH, MAGIC, PAGE, RESCAN, JobBoard, JobEntry


def in_child(folder: Path, name: str = "other", left: float = 5.0) -> int:
    """A process that has an entry until it is killed."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        board = JobBoard(name, folder)
        board.write(left, True)
        os.write(tell, b"x")
        while True:
            board.write(left, True)
            time.sleep(0.02)
    os.read(told, 1)
    os.close(told)
    os.close(tell)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def soon(wanted: Callable[[], bool], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if wanted():
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sending"


def test_another_process_is_heard_until_it_is_killed(folder: Path) -> None:
    board = JobBoard("mine", folder)
    pid = in_child(folder)
    assert soon(lambda: board.read() == [JobEntry("other", 5.0, True)])
    os.kill(pid, signal.SIGKILL)  # not reaped yet: a zombie holds nobody back
    assert soon(lambda: board.read() == [], FRESH / 2)
    os.waitpid(pid, 0)
    assert soon(lambda: not board.read() and len(os.listdir(folder)) == 1), "the dead's entry is removed"
    board.close()
    assert not folder.exists()


def test_a_stopped_process_holds_nobody_back(folder: Path) -> None:
    board, pid = JobBoard("mine", folder), in_child(folder)
    assert soon(lambda: len(board.read()) == 1)
    os.kill(pid, signal.SIGSTOP)
    assert soon(lambda: board.read() == [], FRESH / 2)
    end(pid)


def test_workers_of_one_run_do_not_compete(folder: Path) -> None:
    board, pid = JobBoard("mine", folder), in_child(folder, "mine")
    time.sleep(2 * RESCAN)
    assert board.read() == []
    end(pid)


def make_entry(
    folder: Path, left: float, written: float, magic: int = MAGIC, size: int = PAGE, mode: int = 0o600
) -> None:
    """As this very process might have written it, under another name."""
    raw = bytearray(PAGE)
    for place, kind, value in ((_MAGIC, "q", magic), (_LEFT, "d", left), (_WRITTEN, "d", written), (_BUSY, "q", 1)):
        struct.pack_into(kind, raw, 8 * place, value)
    raw[64:69] = b"\x1b[31m"
    began = next(name for name in os.listdir(folder)).split("-")[1]
    path = folder / f"{os.getpid()}-{began}-1"
    path.write_bytes(raw[:size])
    path.chmod(mode)


def test_a_name_is_shown_without_control_characters(folder: Path) -> None:
    board = JobBoard("mine", folder)
    make_entry(folder, 1.0, time.monotonic())
    assert [entry.name for entry in board.read()] == ["[31m"]


@pytest.mark.parametrize(
    "bad",
    [
        {"left": math.nan},
        {"left": -1.0},
        {"written": -1e9},
        {"written": 1e30},
        {"written": math.nan},
        {"magic": 7},
        {"size": 100},
        {"mode": 0o644},
    ],
    ids=str,
)
def test_a_bad_entry_counts_for_nothing(folder: Path, bad: dict) -> None:
    board = JobBoard("mine", folder)
    make_entry(folder, **{"left": 1.0, "written": time.monotonic(), **bad})
    assert board.read() == []


def test_links_folders_and_foreign_names_are_passed_over(folder: Path, tmp_path: Path) -> None:
    board = JobBoard("mine", folder)
    began = os.listdir(folder)[0].split("-")[1]
    (folder / f"{os.getpid()}-{began}-2").symlink_to("/dev/zero")
    (folder / f"{os.getpid()}-{began}-3").mkdir()
    (folder / "x-y").touch()
    (folder / ("1" * 90 + "-1")).touch()
    assert board.read() == []


def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="is not yours alone"):
        JobBoard("mine", folder)
