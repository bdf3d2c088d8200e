"""S1: a crash at every point of every writer. Recovery gives the old state or the new one, without a human."""

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from forked import reap

from shoal.core.disk import Buffer, FileOperations
from shoal.core.durable import write_file
from shoal.core.ledger import RunResumed, SamplesTaken, ledger_file, read_ledger
from shoal.core.log import ChecksummedLog
from shoal.core.record import RunInfo, read_attempts
from shoal.membership import wal
from shoal.membership.log_entries import MemberLost, ViewInstalled, ViewProposed
from shoal.membership.protocol import InstallView
from shoal.membership.view import MembershipView
from shoal.testing.crashsim import RecordedDisk
from shoal.train.checkpoint.coordinator import base
from shoal.train.checkpoint.manifest import newest, read_shard, verify
from shoal.train.checkpoint.shard import parse, pieces
from shoal.train.checkpoint.writer import _part, clear, commit, write_shard

LEAST = 500


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: SIGKILL loses nothing that the system has taken, and thousands of fsyncs would wait for the disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="shoal-crash-", dir=memory) as name:
        yield Path(name)


def checkpoint(home: Path, step: int, disk: FileOperations | None = None, workers: int = 2) -> None:
    """What the workers' threads do, one after the other."""
    extra = () if disk is None else (disk,)
    shards = [
        write_shard(
            _part(home, step), rank, pieces({"x": torch.full((9,), float(step + rank))}, {"step": str(step)}), *extra
        )
        for rank in range(workers)
    ]
    commit(home, msgspec.structs.replace(base("one", "p", 0, workers, step), shards=shards), *extra)


def step_of(home: Path) -> int | None:
    """What a resuming launcher would take: verified, parsed, and of one step throughout."""
    folder, _ = newest(home, "one")
    if folder is None:
        return None
    manifest = verify(folder)
    for rank, shard in enumerate(manifest.shards):
        tensors, texts = parse(read_shard(folder, shard))
        assert texts == {"step": str(manifest.step)}
        assert tensors["x"].tolist() == [manifest.step + rank] * 9
    return manifest.step


@pytest.mark.parametrize("older", [0, 1, 3])
def test_s1_checkpoints(tmp_path: Path, older: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    clear(home, 0)
    for step in range(1, older + 1):
        checkpoint(home, step)
    disk = RecordedDisk(home)
    checkpoint(home, 9, disk)
    states, seen = 0, set()
    for states, crash in enumerate(disk.crashes(drawn=12), 1):
        place = tmp_path / str(states)
        crash.build(place)
        seen.add(step_of(place))
        assert seen <= {older or None, 9}, crash.what
        if states % 8 == 0:  # and the next attempt may write the same step again
            clear(place, step_of(place) or 0)
            checkpoint(place, 9) if step_of(place) != 9 else None
            assert step_of(place) == 9
    assert seen == {older or None, 9}
    assert states * 3 >= LEAST, states


FACTS = {"loader": 0, "epoch": 0, "number": 0, "stream": 0, "samples": 4}
ENTRIES: list[SamplesTaken | RunResumed] = [
    SamplesTaken(**FACTS, begin=4 * n, end=4 * n + 4, first=n, last=n) for n in range(5)
]
ENTRIES += [RunResumed(step=3, attempt=2, workers=1)]
VIEW = InstallView(view=MembershipView(1, ("a", "b")), through=0, fresh=("a", "b"))
TOLD: list[wal.Written] = [
    ViewProposed(generation=1),
    ViewInstalled(install=VIEW),
    MemberLost(member="b", reason="x"),
    ViewProposed(generation=2),
]
INFO = RunInfo(run="a", plan="", workers=1, seed=0, script="", command=[], started=0, versions={}, machine={})


def write_ledger(home: Path, disk: FileOperations) -> Iterator[object]:
    log = ChecksummedLog(ledger_file(home), disk)
    for number, entry in enumerate(ENTRIES):
        log.append(msgspec.json.encode(entry))
        log.sync()
        yield ENTRIES[: number + 1]
    log.close()


def write_attempts(home: Path, disk: FileOperations) -> Iterator[object]:
    for number in (2, 3):
        again = [msgspec.structs.replace(INFO, attempt=n, step=5 * n) for n in range(2, number + 1)]
        write_file(home / f"attempt-{number}.json", msgspec.json.encode(again[-1]), disk)
        yield [INFO, *again]


def write_members(home: Path, disk: FileOperations) -> Iterator[object]:
    log = wal.CoordinatorLog(home / "members.log", disk)
    for number, entry in enumerate(TOLD):
        log.append(entry)
        yield TOLD[: number + 1]
    log.close()


def write_checkpoints(home: Path, disk: FileOperations) -> Iterator[object]:
    checkpoint(home, 2, disk)
    yield 2


def members(home: Path) -> list[wal.Written]:
    """What a coordinator that is started again knows."""
    log = wal.CoordinatorLog(home / "members.log")
    log.close()
    return log.past


Writer = Callable[[Path, FileOperations], Iterator[object]]
WRITERS: dict[str, tuple[Writer, Callable[[Path], object], object]] = {
    "ledger": (write_ledger, lambda home: list(read_ledger(home)), []),
    "attempts": (write_attempts, read_attempts, [INFO]),
    "members": (write_members, members, []),
    "checkpoints": (write_checkpoints, step_of, 1),
}
"""Of each: a writer that gives, after every call, what must be there from then on; a reader; what it finds at first."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "run.json").write_bytes(msgspec.json.encode(INFO))
    clear(home, 0)
    checkpoint(home, 1)
    return home


@pytest.mark.parametrize("name", WRITERS)
def test_s1_records(tmp_path: Path, home: Path, name: str) -> None:
    writer, found, first = WRITERS[name]
    disk = RecordedDisk(home)
    legal = [first, *writer(home, disk)]
    for number, crash in enumerate(disk.crashes()):
        crash.build(tmp_path / str(number))
        assert found(tmp_path / str(number)) in legal, crash.what


class Deadly(FileOperations):
    """Kills its process at the n-th call: before it, or in the middle if it is a write."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def _one(self) -> bool:
        self._left -= 1
        return self._left < 0

    def write(self, file: int, data: Buffer) -> None:
        if self._one():
            super().write(file, bytes(data)[: len(bytes(data)) // 2])
            die()
        super().write(file, data)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _deadly(name: str) -> Callable[..., object]:
    def call(self: Deadly, *args: object) -> object:
        if self._one():
            die()
        return getattr(FileOperations, name)(self, *args)

    return call


for _name in ("make_folder", "create", "extend", "cut", "sync", "sync_folder", "rename", "remove"):
    setattr(Deadly, _name, _deadly(_name))


@pytest.mark.parametrize("name", WRITERS)
def test_s1_killed_at_every_call(tmp_path: Path, home: Path, name: str) -> None:
    """Real processes and SIGKILL: what the dead one had heard to be durable is there, and the next goes on."""
    writer, found, first = WRITERS[name]
    shutil.copytree(home, tmp_path / "whole")
    legal = [first, *writer(tmp_path / "whole", FileOperations())]
    for calls in itertools.count():
        place = tmp_path / str(calls)
        shutil.copytree(home, place)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            for _ in writer(place, Deadly(calls)):
                os.write(write, b".")
            os._exit(0)
        os.close(write)
        status = reap(pid, 60.0)
        with open(read, "rb") as pipe:
            heard = len(pipe.read())
        assert found(place) in legal[heard : heard + 2], calls
        if status == 0:
            return


@pytest.mark.soak
def test_s1_many_more(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    clear(home, 0)
    checkpoint(home, 1)
    disk = RecordedDisk(home)
    checkpoint(home, 2, disk, workers=4)
    for number, crash in enumerate(disk.crashes(seed=1, drawn=200)):
        crash.build(tmp_path / str(number))
        assert step_of(tmp_path / str(number)) in (1, 2), crash.what
