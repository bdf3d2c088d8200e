"""The data of `network.py` and `wire.py`, read once: workers are forked with what their launcher has read."""

import sys
from functools import cache
from pathlib import Path

from torch.utils.data import Dataset, TensorDataset

sys.path.append(str(Path(__file__).parents[1] / "examples"))

import mnist
import shakespeare

CONTEXT = 64
WINDOWS = 20_000
JUDGED = {"cnn": 2000, "mlp": 10_000, "transformer": 100}
"""Samples of the data held out that a report is made from."""


@cache
def read(name: str, folder: Path) -> tuple[Dataset, Dataset, int]:
    """Data to train on, data to judge by, and the number of letters."""
    if name == "transformer":
        train, tail, letters = shakespeare.read(folder / "tinyshakespeare.txt")
        held_out = shakespeare.Windows(tail, CONTEXT, JUDGED[name])
        return shakespeare.Windows(train, CONTEXT, WINDOWS), held_out, letters
    test = mnist.mnist(folder / "mnist", "test")
    return mnist.mnist(folder / "mnist", "train"), TensorDataset(*test[: JUDGED[name]]), 0
