"""The board: rows do not touch each other, and a worker can be described."""

import math
import os

from shoal.hosts.status_board import MOST_WORKERS, StatusBoard, WorkerState


def test_rows_are_apart() -> None:
    board = StatusBoard.private()
    ranks = (0, 1, MOST_WORKERS - 1)
    for rank in ranks:
        board.enter(rank)
        board.progress(rank, epoch=rank + 1, step=rank + 2, samples=rank + 3, sent=rank + 4)
        board.loss(rank, rank / 2)
    for rank in ranks:
        row = board.read(rank)
        assert [row[name] for name in ("epoch", "step", "samples", "sent")] == [rank + n for n in (1, 2, 3, 4)]
        assert (row["pid"], row["loss"], row["state"]) == (os.getpid(), rank / 2, WorkerState.starting)
    assert board.read(2) == dict.fromkeys(row, 0)


def test_a_loss_is_unknown_in_the_beginning() -> None:
    board = StatusBoard.private()
    board.enter(0)
    assert math.isnan(board.read(0)["loss"])


def test_a_worker_in_words() -> None:
    board = StatusBoard.private()
    assert board.describe(3) == "worker 3, which never started"
    board.enter(3)
    board.progress(3, 0, 418, 0, 0)
    board.note(3, WorkerState.computing)
    said = board.describe(3)
    assert said == f"worker 3 (pid {os.getpid()}), last seen computing in step 418, 0.0 s ago"


def test_the_word_to_stop() -> None:
    board = StatusBoard.private()
    assert board.aborted is None
    board.abort(0)
    assert board.aborted == 0
    board.abort(5)
    assert board.aborted == 5


def test_who_waits_in_a_meeting_nobody_came_to() -> None:
    board = StatusBoard.private()
    for rank in range(2):
        board.enter(rank)
    board.enter_sync(1)
    assert board.ahead(0, 1)
    assert not board.ahead(1, 0)
    board.enter_sync(0)  # it came, and has left already
    board.note(0, WorkerState.exchanging)
    assert not board.ahead(0, 1)
