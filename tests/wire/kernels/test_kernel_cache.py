"""One process at a time compiles for a folder; the others wait, unless they cannot, or it takes too long."""

import os
import signal
import threading
from pathlib import Path

import pytest

from shoal.wire.kernels import kernel_cache
from shoal.wire.kernels.kernel_cache import one_at_a_time

WAIT = 60.0


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody found the folder taken."""
    event, real = threading.Event(), kernel_cache._locked

    def locked(file: int) -> bool:
        got = real(file)
        if not got:
            event.set()
        return got

    monkeypatch.setattr(kernel_cache, "_locked", locked)
    return event


def test_a_second_one_waits_for_the_first(tmp_path: Path, refused: threading.Event) -> None:
    order: list[str] = []

    def second() -> None:
        with one_at_a_time(tmp_path):
            order.append("second")

    waiting = threading.Thread(target=second)
    with one_at_a_time(tmp_path):
        waiting.start()
        assert refused.wait(WAIT), "it was let in"
        order.append("first")
    waiting.join(WAIT)
    assert order == ["first", "second"]


def test_one_that_is_killed_while_it_compiles_keeps_nobody_waiting(tmp_path: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with one_at_a_time(tmp_path):
            os.write(write, b"x")
            signal.pause()
    assert os.read(read, 1) == b"x"
    os.close(read)
    os.close(write)
    file = os.open(tmp_path / "lock", os.O_RDWR)
    assert not kernel_cache._locked(file), "the child compiles"
    os.close(file)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    entered = False
    with one_at_a_time(tmp_path):
        entered = True
    assert entered


def test_one_that_takes_too_long_is_not_waited_for(
    tmp_path: Path, refused: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache, "PATIENCE", 0.0)
    inside = 0
    with one_at_a_time(tmp_path), one_at_a_time(tmp_path):
        inside = 2
    assert inside == 2
    assert refused.is_set()


def test_where_no_lock_can_be_made_all_compile(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    inside = 0
    with one_at_a_time(tmp_path), one_at_a_time(tmp_path):
        inside = 2
    assert inside == 2
    assert not (tmp_path / "elsewhere").exists(), "what somebody has put there is not followed"
