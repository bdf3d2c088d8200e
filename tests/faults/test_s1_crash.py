"""S1: a crash at every point of every writer. Recovery gives the old state or the new one, without a human."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from shoal.core.ledger import Resumed, Took, ledger_file, read_ledger
from shoal.core.log import Log
from shoal.core.record import RunInfo, read_attempts
from shoal.testing.crashsim import RecordedDisk
from shoal.train.checkpoint.keeper import base
from shoal.train.checkpoint.manifest import newest, read_shard, verify
from shoal.train.checkpoint.shard import parse, pieces
from shoal.train.checkpoint.writer import _part, clear, commit, write_shard

LEAST = 500


def checkpoint(home: Path, step: int, disk: RecordedDisk | None = None, workers: int = 2) -> None:
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


@pytest.mark.parametrize("writer", ["ledger", "attempts"])
def test_s1_records(tmp_path: Path, writer: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    states: Callable[[Path], object]
    disk = RecordedDisk(home)
    if writer == "ledger":
        facts = {"loader": 0, "epoch": 0, "number": 0, "stream": 0, "samples": 4}
        entries = [Took(**facts, begin=4 * n, end=4 * n + 4, first=n, last=n) for n in range(5)]
        entries.append(Resumed(step=3, attempt=2, workers=1))
        log = Log(ledger_file(home), disk)
        for entry in entries:
            log.append(msgspec.json.encode(entry))
        log.sync()
        log.close()

        def states(place: Path) -> object:
            return list(read_ledger(place))

        legal = [entries[:n] for n in range(len(entries) + 1)]
    else:
        info = RunInfo(run="a", plan="", workers=1, seed=0, script="", command=[], started=0, versions={}, machine={})
        (home / "run.json").write_bytes(msgspec.json.encode(info))
        disk = RecordedDisk(home)
        again = msgspec.structs.replace(info, attempt=2, step=5)
        from shoal.core.durable import write_file

        write_file(home / "attempt-2.json", msgspec.json.encode(again), disk)

        def states(place: Path) -> object:
            return read_attempts(place)

        legal = [[info], [info, again]]
    for number, crash in enumerate(disk.crashes()):
        crash.build(tmp_path / str(number))
        assert states(tmp_path / str(number)) in legal, crash.what


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
