"""S2 disk full, S3 fsync fails, S7 slow disk: training goes on, the last good checkpoint stays, the next one works."""

import contextlib
import errno
import itertools
import json
import os
from pathlib import Path

import pytest
import torch
from scripts import script, shoal

from shoal.core.disk import DISK, Buffer, FileOperations
from shoal.train.checkpoint import writer
from shoal.train.checkpoint.coordinator import base
from shoal.train.checkpoint.manifest import checkpoints, listed, verify
from shoal.train.checkpoint.writer import CheckpointWriter, clear

BROKEN = """
import errno, shoal.core.disk as disk
bad = {"left": BAD}
real_write, real_sync = disk.FileOperations.write, disk.FileOperations.sync
def path_of(file):
    import os
    return os.readlink(f"/proc/self/fd/{file}")
def write(self, file, data):
    if "METHOD" == "write" and bad["left"] and run.step >= FROM and path_of(file).endswith(".safetensors"):
        bad["left"] -= 1
        os.write(file, bytes(data)[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    real_write(self, file, data)
def sync(self, file):
    if "METHOD" == "sync" and bad["left"] and path_of(file).endswith(".safetensors"):
        bad["left"] -= 1
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    real_sync(self, file)
disk.FileOperations.write, disk.FileOperations.sync = write, sync
"""


CHECK = """
def check(first):
    from pathlib import Path
    from shoal.train.checkpoint.manifest import newest
    run._together.checkpoints._writer.wait(30)
    assert not run.is_main or run.step < first or newest(Path("runs/one"), "one")[0], "no checkpoint is whole"
"""


def broken(folder: Path, method: str, bad: int, ranks: str = "run.rank == 0", first: int = 0) -> list[str]:
    """Train with a disk that fails `bad` times from step `first` on; gives the warnings of the record."""
    script(folder, samples=192, epochs=2, each=f"check({first or 48})")
    text = (folder / "script.py").read_text()
    inject = BROKEN.replace("METHOD", method).replace("BAD", str(bad)).replace("FROM", str(first))
    inject = f"if {ranks}:\n" + "".join(f"    {line}\n" for line in inject.strip().splitlines())
    (folder / "script.py").write_text(text.replace("run = shoal.start()", f"run = shoal.start()\n{inject}{CHECK}"))
    outcome = shoal(folder, "run", "--name", "one", "--workers", "2", "--checkpoint", "5steps", "script.py")
    assert outcome.code == 0, outcome.err
    events = [json.loads(line) for line in (folder / "runs/one/worker-0.jsonl").read_text().splitlines()]
    warnings = [event["text"] for event in events if event["event"] == "warned"]
    assert outcome.err.count("failed") == len(warnings)
    assert sum(event["event"] == "saved" for event in events) >= 2
    assert sum(event["event"] == "step" for event in events) == 48
    for folder_ in listed(folder / "runs/one"):
        verify(folder_)
    assert len(listed(folder / "runs/one")) == 2
    assert not list((folder / "runs/one/checkpoints").glob("*.part"))
    return warnings


def test_s2_disk_full_twice(tmp_path: Path) -> None:
    """After every step the checkpoint before is whole."""
    (warning,) = broken(tmp_path, "write", 2, first=8)
    assert warning.startswith("the checkpoint of step 10 failed: No space left on device; training goes on")


def test_s2_disk_full_for_another_worker(tmp_path: Path) -> None:
    (warning,) = broken(tmp_path, "write", 1, "run.rank == 1")
    assert "failed: worker 1: No space left on device" in warning


def test_s3_a_failed_fsync_is_a_failed_checkpoint(tmp_path: Path) -> None:
    (warning,) = broken(tmp_path, "sync", 1)
    assert "the checkpoint of step 5 failed: Input/output error" in warning


class FailingDisk(FileOperations):
    """The call of this number fails, and with `stays` all that follow it, as on a disk that is full."""

    def __init__(self, number: int, error: int, stays: bool) -> None:
        self.number, self.error, self.stays, self.calls = number, error, stays, 0

    @property
    def failed(self) -> bool:
        return self.calls > self.number

    def _count(self, what: str) -> None:
        self.calls += 1
        if self.calls == self.number + 1 or (self.stays and self.failed):
            raise OSError(self.error, os.strerror(self.error), what)

    def make_folder(self, path: Path) -> None:
        self._count("make_folder")
        super().make_folder(path)

    def create(self, path: Path, mode: int = 0o644) -> int:
        self._count("create")
        return super().create(path, mode)

    def write(self, file: int, data: Buffer) -> None:
        with contextlib.suppress(OSError):
            self._count("write")
            return super().write(file, data)
        super().write(file, bytes(data)[: len(data) // 2])
        raise OSError(self.error, os.strerror(self.error))

    def sync(self, file: int) -> None:
        self._count("sync")
        super().sync(file)

    def sync_folder(self, path: Path) -> None:
        self._count("sync_folder")
        super().sync_folder(path)


def checkpoint(home: Path, step: int, disk: FileOperations = DISK) -> str:
    """What two workers do one after the other; why it failed, or nothing."""
    manifest = base("one", "p", 0, 2, step)
    for rank in (1, 0):
        tensors = {"x": torch.full((9,), float(step + rank))}
        done = CheckpointWriter(home, rank, disk=disk).write(manifest, tensors, {"step": str(step)})
    return done.error


@pytest.mark.parametrize(
    ("stays", "error"),
    [
        pytest.param(False, errno.EIO, id="once-EIO"),
        pytest.param(True, errno.ENOSPC, id="from then on-ENOSPC"),
        pytest.param(False, errno.ENOSPC, id="once-ENOSPC", marks=pytest.mark.soak),
        pytest.param(True, errno.EIO, id="from then on-EIO", marks=pytest.mark.soak),
    ],
)
def test_s2_s3_every_call_of_a_checkpoint_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, stays: bool
) -> None:
    """Shards, notes, manifest, folders, and every fsync: it is told, the one before stays whole, the next is made."""
    monkeypatch.setattr(writer, "PATIENCE", 0.05)
    for number in itertools.count():
        home = tmp_path / str(number)
        home.mkdir()
        clear(home, 0)
        assert not checkpoint(home, 1)
        disk = FailingDisk(number, error, stays)
        told = checkpoint(home, 2, disk)
        if not disk.failed:
            break
        assert os.strerror(error) in told or "worker 1 wrote nothing" in told, (number, told)
        steps = [verify(folder).step for folder in listed(home)]
        assert steps in ([1], [2, 1]), "only the last fsync, of the folder's new name, finds it there"
        assert steps == [1] or number == disk.calls - 1, number
        assert not checkpoint(home, 3)
        assert verify(listed(home)[0]).step == 3
        assert not list(checkpoints(home).glob("*.part"))
    assert not told
    assert number >= 14, "calls of two workers"


SLOW = """
import shoal.core.disk as disk, threading
inside, most = [0], [0]
def stall(name, applies):
    real = getattr(disk.FileOperations, name)
    def call(self, file, *data):
        if not applies(file):
            return real(self, file, *data)
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        target, deadline = run.step + 12, time.monotonic() + 60  # stalls until training has gone on
        while run.step < target and time.monotonic() < deadline and run.step < 40:
            time.sleep(0.01)
        if time.monotonic() >= deadline:
            open("blocked", "a").write(f"{name} in {threading.current_thread().name}\\n")
        real(self, file, *data)
        inside[0] -= 1
    setattr(disk.FileOperations, name, call)
stall("sync", lambda file: True)
stall("sync_folder", lambda path: True)
stall("write", lambda file: "/checkpoints/" in os.readlink(f"/proc/self/fd/{file}"))
"""
"""In whatever thread: no fsync returns, and no byte of a checkpoint is taken. Lines of record and ledger are not synced
by the training: they are taken by the system's memory, as on a real disk that stands still."""


def test_s7_a_slow_disk_does_not_hold_up_training(tmp_path: Path) -> None:
    script(tmp_path, samples=192, epochs=2, each="time.sleep(0.01)")
    text = (tmp_path / "script.py").read_text().replace("run = shoal.start()", f"run = shoal.start()\n{SLOW}")
    (tmp_path / "script.py").write_text(text + "\nif run.is_main: print('most', most[0])\n")
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", "2", "--checkpoint", "5steps", "script.py")
    assert outcome.code == 0, outcome.err
    blocked = tmp_path / "blocked"
    assert not blocked.exists(), blocked.read_text()
    assert "most 1" in outcome.out
    assert len(listed(tmp_path / "runs/one")) >= 1
