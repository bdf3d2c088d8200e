"""How long a trained model takes to answer."""

import time
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor, nn

WARM_UP = 3
"""Passes that are not timed: kernels are chosen and memory is fetched in the first ones."""


def inference_seconds(model: nn.Module, inputs: Sequence[Tensor], repeats: int = 20) -> float:
    """Median time of `model(*inputs)`; with as many threads as torch has now."""
    times = [_timed(model, inputs) for _ in range(WARM_UP + repeats)]
    # The median, because a pass that another process interrupted would shift a mean.
    return median(times[WARM_UP:])


def _timed(model: nn.Module, inputs: Sequence[Tensor]) -> float:
    begin = time.perf_counter()
    with torch.inference_mode():
        model(*inputs)
    return time.perf_counter() - begin
