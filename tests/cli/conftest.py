"""Nothing may be left behind by a command: processes, shared memory, rendezvous files."""

import os
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest


@pytest.fixture
def tidy(tmp_path: Path) -> Iterator[None]:
    forked.adopt_orphans()
    before, memory = forked.children(), set(os.listdir("/dev/shm"))
    yield
    assert forked.soon(30.0, lambda: forked.children() <= before), "processes are left"
    assert forked.soon(30.0, lambda: set(os.listdir("/dev/shm")) <= memory), "shared memory is left"
    assert not list(tmp_path.glob("runs/*/rendezvous-*"))
