"""What an agent sees of the training loop."""

import threading
import time

import pytest
from toy import until

from shoal.core.clock import now
from shoal.hosts.status_board import StatusBoard, WorkerState
from shoal.membership.step_watchdog import StepPeriod, ThreadIdleTime, from_board


def test_a_row_of_the_board_is_a_look() -> None:
    board = StatusBoard.private()
    board.enter(3)
    board.progress(3, epoch=1, step=418, samples=0, sent=0)
    board.note(3, WorkerState.computing)
    assert from_board(board, 3)() == (418, "computing")


def test_the_period_is_the_median_of_steps_seen() -> None:
    period = StepPeriod()
    assert period.look(-9.0, 0) == 0.0
    assert period.look(0.0, 5) == 0.0, "until a step ends, a model may be built"
    assert period.look(0.25, 5) == 0.0, "no step ended since"
    assert period.look(1.0, 10) == pytest.approx(0.2)
    assert period.look(1.5, 11) == pytest.approx(0.35)
    period.look(9.5, 12)
    assert period.look(9.7, 13) == pytest.approx(0.35), "one long step changes little"
    assert period.look(9.8, 0) == pytest.approx(0.35), "a counter that begins again"


def test_a_thread_that_waits_on_a_lock_rests_and_one_that_works_does_not() -> None:
    lock, made = threading.Lock(), list[ThreadIdleTime]()

    def body() -> None:
        made.append(ThreadIdleTime())
        with lock:
            pass

    with lock:
        thread = threading.Thread(target=body)
        thread.start()
        until(lambda: made and made[0].look(now()) > 0.3)
    thread.join(30.0)
    mine = ThreadIdleTime()
    mine.look(now())
    before = time.thread_time_ns()
    until(lambda: time.thread_time_ns() > before)
    assert mine.look(7.0) == 0.0
