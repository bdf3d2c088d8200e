"""S4 truncated, S5 bit-flipped, S6 missing, swapped and mixed shards: never accepted, and the one before is taken."""

import random
import shutil
from pathlib import Path

import pytest
from test_crash_at_every_write import checkpoint, step_of

from shoal.train.checkpoint.manifest import CheckpointDamaged, folder_of, newest, verify
from shoal.train.checkpoint.writer import clear


@pytest.fixture
def home(tmp_path: Path) -> Path:
    clear(tmp_path, 0)
    checkpoint(tmp_path, 1)
    checkpoint(tmp_path, 2)
    return tmp_path


def files(home: Path, step: int = 2) -> list[Path]:
    return sorted(folder_of(home, step).iterdir())


def test_s4_truncated(home: Path) -> None:
    for path in files(home):
        whole = path.read_bytes()
        for part in range(64):
            path.write_bytes(whole[: len(whole) * part // 64])
            assert step_of(home) == 1, (path.name, part)
        path.write_bytes(whole + b"x")
        assert step_of(home) == 1, path.name
        path.write_bytes(whole)
    assert step_of(home) == 2


def flip(home: Path, number: int, seed: int) -> None:
    chance = random.Random(seed)
    originals = {path: path.read_bytes() for path in files(home)}
    for _ in range(number):
        path = chance.choice(list(originals))
        whole = bytearray(originals[path])
        whole[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(whole)
        with pytest.raises(CheckpointDamaged, match="step-000000000002"):
            verify(folder_of(home, 2))
        path.write_bytes(originals[path])
    assert step_of(home) == 2


def test_s5_bits_flipped(home: Path) -> None:
    flip(home, 800, seed=5)


@pytest.mark.soak
def test_s5_ten_thousand_bits_flipped(home: Path) -> None:
    flip(home, 10_000, seed=6)


def test_s6_a_shard_is_missing(home: Path) -> None:
    for path in files(home):
        whole = path.read_bytes()
        path.unlink()
        folder, reasons = newest(home, "one")
        assert folder == folder_of(home, 1)
        assert path.name in reasons[0]
        assert "step-000000000002" in reasons[0]
        path.write_bytes(whole)


def test_s6_shards_are_swapped(home: Path) -> None:
    first, second = (folder_of(home, 2) / f"worker-{rank}.safetensors" for rank in range(2))
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    _, reasons = newest(home, "one")
    assert "worker-0.safetensors is damaged or of another step" in reasons[0]


@pytest.mark.parametrize("name", ["worker-0.safetensors", "worker-1.safetensors", "manifest.json"])
def test_s6_a_shard_of_another_step(home: Path, name: str) -> None:
    shutil.copy(folder_of(home, 1) / name, folder_of(home, 2) / name)
    folder, reasons = newest(home, "one")
    assert folder == folder_of(home, 1)
    assert "step-000000000002" in reasons[0]


def test_s6_a_checkpoint_of_another_run(home: Path) -> None:
    folder, reasons = newest(home, "two")
    assert folder is None
    assert reasons == [f"step-{step:012d} belongs to run 'one'" for step in (2, 1)]
