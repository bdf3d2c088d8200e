"""Processes by number and beginning: a number that was given out again is another process."""

import os
import signal
import time

from forked import soon

from shoal.core.process import HostProcess


def child() -> int:
    pid = os.fork()
    if pid == 0:
        try:
            time.sleep(60)
        finally:
            os._exit(0)
    return pid


def test_a_process_lives_is_stopped_and_is_gone() -> None:
    pid = child()
    process = HostProcess.of(pid)
    assert process.state == "running"
    assert not process.ended(0.01)
    assert process.send(signal.SIGSTOP)
    assert soon(30, lambda: process.state == "stopped")
    assert process.send(signal.SIGCONT, signal.SIGKILL)
    assert process.ended(30)
    assert process.state == "gone", "dead, though nobody has waited for it yet"
    os.waitpid(pid, 0)
    assert process.state == "gone"
    assert process.ended(0)
    assert not process.send(signal.SIGTERM)


def test_another_process_with_its_number_is_left_alone() -> None:
    pid = child()
    now = HostProcess.of(pid)
    before = HostProcess(pid, now.began - 1)
    assert before.state == "gone"
    assert not before.send(signal.SIGKILL)
    assert before.ended(0)
    assert now.state == "running"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_no_process_at_all() -> None:
    assert HostProcess().state == HostProcess.of(2**22 + 1).state == "gone"
    assert not HostProcess.of(2**22 + 1).send(signal.SIGKILL)
