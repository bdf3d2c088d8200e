"""Data for the table: MNIST and a text from a folder, or synthetic ones that can be learnt, with nothing to fetch."""

from pathlib import Path

import torch
from mnist import FILES, mnist
from shakespeare import Windows, Writer, read
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from .gan import NOISE

MNIST_FILES = tuple(name for pair in FILES.values() for name in pair)
TEXT_FILE = "tinyshakespeare.txt"
LETTERS, CONTEXT = 65, 32
"""Different characters of that text; how many of them the transformer sees."""


def images(part: str, limit: int | None, folder: Path | None) -> TensorDataset:
    """(image 1x28x28, label): MNIST, or ten fixed patterns under noise."""
    if folder is not None:
        return mnist(folder, part, limit)
    patterns = torch.randn(10, 1, 7, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(limit or 2000) % 10
    noise = torch.randn(len(labels), 1, 28, 28, generator=torch.Generator().manual_seed(_seed(part)))
    return TensorDataset(nn.functional.interpolate(patterns, scale_factor=4)[labels] + noise, labels)


def noise_and_images(part: str, limit: int | None, folder: Path | None) -> TensorDataset:
    """(noise, image): what a GAN makes an image from, and one it must resemble."""
    real = images(part, limit, folder).tensors[0]
    return TensorDataset(torch.randn(len(real), NOISE, generator=torch.Generator().manual_seed(_seed(part))), real)


def texts(part: str, limit: int | None, folder: Path | None) -> Dataset:
    """(characters, the same one later): of the text, or of one in which every letter has two that may follow."""
    if folder is None:
        return Windows(_made_up(10_000, _seed(part)), CONTEXT, limit or 2000)
    head, tail, letters = read(folder / TEXT_FILE)
    if letters > LETTERS:
        raise ValueError(f"{folder / TEXT_FILE} has {letters} different characters; the model knows {LETTERS}")
    return Windows(head if part == "train" else tail, CONTEXT, limit or 2000)


def writer(width: int = 64) -> nn.Module:
    """The character transformer of `shakespeare.py`, two blocks deep; `width` is a multiple of 32."""
    return Writer(LETTERS, width, depth=2, context=CONTEXT)


def _made_up(length: int, seed: int) -> Tensor:
    turns = torch.randint(2, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    letters = [0]
    for turn in turns:
        letters.append((letters[-1] * 5 + 1 + 7 * turn) % LETTERS)
    return torch.tensor(letters)


def _seed(part: str) -> int:
    return {"train": 1, "test": 2}[part]
