"""Requests stacked along their first dimension to one batch, and its outputs cut into one share for each."""

import numpy as np

from shoal.serve.errors import PredictFailed
from shoal.serve.tensors import Tensors


def stack_inputs(inputs: list[Tensors]) -> Tensors:
    """Of one kind: equal names, types and further dimensions."""
    if len(inputs) == 1:
        return inputs[0]
    return {name: np.concatenate([each[name] for each in inputs]) for name in inputs[0]}


def split_outputs(outputs: Tensors, rows: list[int]) -> list[Tensors]:
    """The shares of requests with so many rows. PredictFailed if the model returned another number of them."""
    if len(rows) == 1:
        # A single request needs no cutting, so its model may also give outputs that are not row by row.
        return [outputs]
    for name, each in outputs.items():
        if not each.shape or len(each) != sum(rows):
            raise PredictFailed(f"the model gave {list(each.shape)} as {name!r} for {sum(rows)} samples")
    ends = np.cumsum(rows)
    return [
        {name: found[end - count : end] for name, found in outputs.items()}
        for count, end in zip(rows, ends, strict=True)
    ]
