"""One launcher at a time."""

import os
import signal
import time
from pathlib import Path

import pytest

from shoal.core.errors import UsageError
from shoal.core.lock import hold


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        hold(tmp_path, "one")
        (tmp_path / "held").touch()
        time.sleep(60)
        os._exit(0)
    deadline = time.monotonic() + 30
    while not (tmp_path / "held").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(UsageError, match="run 'one' is still running"):
        hold(tmp_path, "one", seconds=0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    hold(tmp_path, "one", seconds=30)
