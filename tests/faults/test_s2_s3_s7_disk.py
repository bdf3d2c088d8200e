"""S2 disk full, S3 fsync fails, S7 slow disk: training goes on, the last good checkpoint stays, the next one works."""

import json
from pathlib import Path

from scripts import script, shoal

from shoal.train.checkpoint.manifest import listed, verify

BROKEN = """
import errno, shoal.core.disk as disk
bad = {"left": BAD}
real_write, real_sync = disk.Disk.write, disk.Disk.sync
def path_of(file):
    import os
    return os.readlink(f"/proc/self/fd/{file}")
def write(self, file, data):
    if "METHOD" == "write" and bad["left"] and run._progress.step >= FROM and path_of(file).endswith(".safetensors"):
        bad["left"] -= 1
        os.write(file, bytes(data)[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    real_write(self, file, data)
def sync(self, file):
    if "METHOD" == "sync" and bad["left"] and path_of(file).endswith(".safetensors"):
        bad["left"] -= 1
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    real_sync(self, file)
disk.Disk.write, disk.Disk.sync = write, sync
"""


CHECK = """
def check(first):
    from pathlib import Path
    from shoal.train.checkpoint.manifest import newest
    run._together.keeper._writer.wait(30)
    assert not run.is_main or run._progress.step < first or newest(Path("runs/one"), "one")[0], "no checkpoint is whole"
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


SLOW = """
import shoal.core.disk as disk, threading
real_write, inside, most = disk.Disk.write, [0], [0]
def write(self, file, data):
    if threading.current_thread() is threading.main_thread():
        return real_write(self, file, data)
    inside[0] += 1
    most[0] = max(most[0], inside[0])
    target, deadline = run._progress.step + 12, time.monotonic() + 30  # stalls until training has gone on
    while run._progress.step < target and time.monotonic() < deadline and run._progress.step < 40:
        time.sleep(0.01)
    if time.monotonic() >= deadline:
        open("blocked", "w").close()
    real_write(self, file, data)
    inside[0] -= 1
disk.Disk.write = write
"""


def test_s7_a_slow_disk_does_not_hold_up_training(tmp_path: Path) -> None:
    script(tmp_path, samples=192, epochs=2, each="time.sleep(0.01)")
    text = (tmp_path / "script.py").read_text().replace("run = shoal.start()", f"run = shoal.start()\n{SLOW}")
    (tmp_path / "script.py").write_text(text + "\nif run.is_main: print('most', most[0])\n")
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", "2", "--checkpoint", "5steps", "script.py")
    assert outcome.code == 0, outcome.err
    assert not (tmp_path / "blocked").exists()
    assert "most 1" in outcome.out
    assert len(listed(tmp_path / "runs/one")) >= 1
