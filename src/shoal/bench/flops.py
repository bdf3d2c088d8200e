"""Floating-point operations of one forward pass, by torch's own counter.

A multiplication and an addition count as two. Only products of matrices and convolutions count, as in the literature;
norms, activations and biases are left out. Two fast CPU kernels are one opaque operation that the counter does not
know and takes for nothing (oneDNN's LSTM, fused attention), so the pass that is counted runs without them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def forward_flops(model: nn.Module, inputs: Sequence[Tensor]) -> int:
    """Operations of `model(*inputs)`, all samples of the batch together."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), without_onednn(), sdpa_kernel(SDPBackend.MATH), counter:
        model(*inputs)
    return int(counter.get_total_flops())


@contextmanager
def without_onednn() -> Iterator[None]:
    """torch's own `mkldnn.flags` would do, but it sets TF32 too, which warns where there is none."""
    before = torch.backends.mkldnn.set_flags(False, _fp32_precision=None)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before[0], _fp32_precision=None)  # type: ignore[no-untyped-call]
