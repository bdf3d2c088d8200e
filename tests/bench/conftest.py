"""Data for benchmarks that nobody learns from."""

import gzip
import random
import struct
from pathlib import Path

import pytest


def write_idx(path: Path, *shape: int, most: int) -> None:
    chance = random.Random(0)
    values = bytes(chance.randrange(most) for _ in range(shape[0] * (shape[1] * shape[2] if len(shape) > 1 else 1)))
    path.write_bytes(gzip.compress(struct.pack(f">BBBB{len(shape)}i", 0, 0, 8, len(shape), *shape) + values))


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    """Noise in the shape of the data sets."""
    folder = tmp_path / "data"
    (folder / "mnist").mkdir(parents=True)
    for name in ("train", "t10k"):
        write_idx(folder / "mnist" / f"{name}-images-idx3-ubyte.gz", 64, 28, 28, most=256)
        write_idx(folder / "mnist" / f"{name}-labels-idx1-ubyte.gz", 64, most=10)
    (folder / "tinyshakespeare.txt").write_text("to be or not to be, that is the question\n" * 100)
    return folder
