"""Waits in shared memory: they end by the flag, by a lost worker, or by the deadline, and say which."""

import os
import subprocess
import threading

import numpy as np
import pytest

from shoal.core.errors import DeadlineError, PeerLost
from shoal.groups import flag_waiter
from shoal.groups.flag_waiter import FlagWaiter
from shoal.hosts.status_board import StatusBoard, WorkerState


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> StatusBoard:
    monkeypatch.setattr(flag_waiter, "LOOK_AROUND", 0.01)
    board = StatusBoard.private()
    board.enter(0)
    board.enter(1)
    return board


def flags(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_a_reached_number_returns_at_once(board: StatusBoard) -> None:
    waiter, row = FlagWaiter(board, 0, 1.0), flags(3, 4)
    waiter.until(row, 3)
    assert waiter.reached(row, 3)
    assert not waiter.reached(row, 4)
    waiter.publish(row, 4)
    assert row.tolist() == [4, 4]


def test_a_late_flag_ends_the_wait(board: StatusBoard) -> None:
    row = flags(1, 0)
    peer = threading.Timer(0.1, lambda: row.__setitem__(1, 1))
    peer.start()
    FlagWaiter(board, 0, 10.0).until(row, 1)
    peer.join(5)
    assert row[1] == 1


def test_the_deadline_names_the_suspect(board: StatusBoard) -> None:
    board.progress(1, 0, 7, 0, 0)
    board.note(1, WorkerState.computing)
    with pytest.raises(
        DeadlineError, match=r"worker 0 waited 0 s for worker 1 \(pid \d+\), last seen computing in step 7"
    ):
        FlagWaiter(board, 0, 0.05).until(flags(1, 0), 1)


def test_the_launchers_word_ends_the_wait(board: StatusBoard) -> None:
    board.abort(1)
    with pytest.raises(PeerLost, match="worker 0 stops: worker 1 is lost"):
        FlagWaiter(board, 0, 10.0).until(flags(1, 0), 1)


@pytest.mark.parametrize("reaped", [True, False])
def test_a_dead_process_is_noticed(board: StatusBoard, reaped: bool) -> None:
    gone = subprocess.Popen(["true"])
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
    if reaped:
        gone.wait(5)
    board._words[board_pid(1)] = gone.pid
    with pytest.raises(PeerLost, match=rf"worker 0 stops: worker 1 \(pid {gone.pid}\), .*, is gone"):
        FlagWaiter(board, 0, 10.0).until(flags(1, 0), 1)
    gone.wait(5)


def test_a_worker_that_has_ended_is_noticed(board: StatusBoard) -> None:
    board.progress(1, 0, 5, 0, 0)
    board.note(1, WorkerState.ended)
    with pytest.raises(PeerLost, match="worker 1, which has ended after step 5; all workers must make the same number"):
        FlagWaiter(board, 0, 10.0).until(flags(1, 0), 1)


def board_pid(rank: int) -> int:
    """Where a worker's process id stands."""
    probe = StatusBoard.private()
    probe.enter(rank)
    return list(probe._words).index(os.getpid())
