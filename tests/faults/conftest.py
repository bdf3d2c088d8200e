"""Nothing may be left behind by a fault (O5): processes, sockets, shared memory, folders, namespaces, groups."""

import os
import re
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


def ownerless() -> list[str]:
    """Network namespaces and control groups whose lab or test is gone: their names say which process made them."""
    groups = [path.name for pattern in ("shoal-*", "*/shoal-*") for path in Path("/sys/fs/cgroup").glob(pattern)]
    spaces = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    owners = {name: re.match(r"shoal-(?:test-)?(\d+)", name) for name in (*groups, *spaces)}
    return [name for name, owner in owners.items() if owner and not os.path.exists(f"/proc/{owner[1]}")]


def left(temporary: Path) -> list[Path]:
    """But for the folders of Python's own multiprocessing: loader processes of any script leave them if killed."""
    return [path for path in temporary.iterdir() if not path.name.startswith("pymp-")]


@pytest.fixture(autouse=True)
def tidy(tmp_path: Path, private: Path, temporary: Path) -> Iterator[None]:
    forked.adopt_orphans()
    before, memory = forked.children(), set(os.listdir("/dev/shm"))
    yield
    assert forked.soon(20.0, lambda: forked.children() <= before), "processes are left"
    assert forked.soon(10.0, lambda: not forked.abandoned_memory(memory)), "shared memory is left"
    assert live() == []
    assert not list(private.iterdir()), "notices are left"
    assert forked.soon(10.0, lambda: not left(temporary)), [*temporary.rglob("*")]
    assert forked.soon(20.0, lambda: not ownerless()), ownerless()
