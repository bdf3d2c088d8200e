"""What every contestant of recovery.py trains, and the log by which it is watched: one file per process.

    start <clock> <rank>             the process is there
    step <clock> <number> <size>     an optimizer step is made, with so many workers

The clock is the machine's monotonic one, which all its processes share, on emulated hosts too.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

SAMPLES, BATCH = 16_384, 32


def model() -> nn.Module:
    """1.07 million parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 16))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 512, generator=generator)
    return TensorDataset(x, (x[:, :16].argmax(1)).long())


class Log:
    """Of this process."""

    def __init__(self, folder: str, rank: int) -> None:
        self._file = Path(folder, f"{os.getpid()}.log").open("a", buffering=1)  # noqa: SIM115  (for the life of the process)
        self._file.write(f"start {time.monotonic():.6f} {rank}\n")

    def step(self, number: int, size: int) -> None:
        self._file.write(f"step {time.monotonic():.6f} {number} {size}\n")
