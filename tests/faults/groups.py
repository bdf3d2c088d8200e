"""Control groups for one worker: little memory, little processor time; version 1 or 2, whichever is there."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.lab.speed import CpuQuota, limit, place

ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def little_memory(size: int) -> Iterator[Path]:
    """A group whose members may use `size` bytes together; a process enters by writing its number to cgroup.procs."""
    name = f"shoal-test-{os.getpid()}"
    for root, file in ((ROOT / "memory", "memory.limit_in_bytes"), (ROOT, "memory.max")):
        folder = root / name
        if os.access(root / "cgroup.procs", os.W_OK) and (root.name == "memory" or _has(root, "memory")):
            folder.mkdir()
            try:
                (folder / file).write_text(str(size))
                yield folder
            finally:
                _remove(folder)
            return
    pytest.skip("no memory control group can be made here: it needs root")


@contextlib.contextmanager
def little_time(share: float) -> Iterator[CpuQuota]:
    """A group whose members share this part of one core."""
    found = place(f"shoal-test-{os.getpid()}")
    quota = limit(*found, share, 1.0) if found is not None else None
    if quota is None:
        pytest.skip("no cpu control group can be made here: it needs root")
    try:
        yield quota
    finally:
        _remove(quota.path)


def _has(root: Path, kind: str) -> bool:
    file = root / "cgroup.subtree_control"
    return file.exists() and kind in file.read_text().split()


def _remove(folder: Path) -> None:
    """Processes that are still there are being killed: the kernel needs a moment."""
    from forked import soon

    def gone() -> bool:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return not folder.exists()

    assert soon(30.0, gone), f"{folder} is left"
