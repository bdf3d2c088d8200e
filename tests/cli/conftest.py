"""Nothing may be left behind by a command: processes, shared memory, rendezvous files."""

import os
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest

from shoal.launch.live_runs import live


@pytest.fixture
def private(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's private folder, for this test alone: what others run is not seen in it."""
    place = tmp_path_factory.mktemp("runtime")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    return place


@pytest.fixture
def tidy(tmp_path: Path, private: Path) -> Iterator[None]:
    forked.adopt_orphans()
    before, memory = forked.children(), set(os.listdir("/dev/shm"))
    yield
    assert forked.soon(30.0, lambda: forked.children() <= before), "processes are left"
    assert forked.soon(30.0, lambda: not forked.abandoned_memory(memory)), "shared memory is left"
    assert not list(tmp_path.glob("runs/*/rendezvous-*"))
    assert live() == []
    assert not list(private.iterdir()), "notices are left"
