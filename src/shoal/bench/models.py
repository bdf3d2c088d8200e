"""Accuracy and cost of a model, as Bianco et al. 2018 tabulate them ("Benchmark Analysis of Representative
Deep Neural Network Architectures"): accuracy, parameters, operations, memory, time to answer, accuracy density.
"""

from pathlib import Path

import msgspec
import torch
from torch.utils.data import DataLoader

from shoal.bench.flops import forward_flops
from shoal.bench.inference import inference_seconds
from shoal.bench.models_accuracy import accuracy_after
from shoal.bench.models_load import ModelEntry, real_data
from shoal.bench.models_memory import inference_bytes

LARGE = 64
"""The larger of the two batches that are answered; the smaller is 1."""


class ModelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    model: str
    data: str
    """The data it was trained and tested on: "real", "synthetic", or "none" for models without an accuracy."""
    accuracy: float | None
    """Top-1 on the test set, 0 to 1; None for what has no classes."""
    parameters: int
    flops: int
    """Of one sample, forward."""
    memory_1: int
    """Peak bytes of one forward pass, parameters included, batch 1."""
    memory_64: int
    seconds_1: float
    """Median time of one forward pass, batch 1."""
    seconds_64: float
    threads: int

    @property
    def density(self) -> float | None:
        """Accuracy in percent per million parameters."""
        return None if self.accuracy is None else 100 * self.accuracy / (self.parameters / 1e6)


def measure(
    name: str,
    entry: ModelEntry,
    *,
    folder: Path | None = None,
    epochs: int = 1,
    limit: int | None = None,
    repeats: int = 20,
) -> ModelFigures:
    """All figures of one model; its weights and data are those of seed 0."""
    torch.manual_seed(0)
    model, real = entry.make(), real_data(entry, folder)
    accuracy = accuracy_after(entry, model, epochs=epochs, limit=limit, folder=real)
    model.eval()
    # Synthetic samples do here: the figures below depend on their shape alone.
    *inputs, _ = next(iter(DataLoader(entry.data("test", LARGE, None), batch_size=LARGE)))
    # Copies, because views share the storage of the whole batch.
    single = [tensor[:1].clone() for tensor in inputs]
    return ModelFigures(
        model=name,
        data="none" if accuracy is None else "real" if real else "synthetic",
        accuracy=accuracy,
        parameters=sum(p.numel() for p in model.parameters()),
        flops=forward_flops(model, single),
        memory_1=inference_bytes(model, single),
        memory_64=inference_bytes(model, inputs),
        seconds_1=inference_seconds(model, single, repeats),
        seconds_64=inference_seconds(model, inputs, repeats),
        threads=torch.get_num_threads(),
    )
