"""Three levels in two bits, four elements a byte: codes 0 (nothing), 1 (+level), 2 (-level); 3 is never written."""

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire import kernels
from shoal.wire.codec import refuse, refuse_non_finite
from shoal.wire.layout import FlatLayout

KERNELS = ("pack_levels", "add_levels", "any_three")
"""Kernels that the functions below call."""


def bytes_of(numel: int) -> int:
    return -(-numel // 4)


def write(codes: Tensor, out: Tensor) -> None:
    """Write codes (0, 1, 2), one an element, as bytes: the torch reference of what kernels do themselves."""
    padding = torch.zeros(-len(codes) % 4, dtype=codes.dtype)
    out.copy_((torch.cat([codes, padding]).view(-1, 4) * 4 ** torch.arange(4)).sum(1).to(torch.uint8))


def pack(values: Tensor, layout: FlatLayout, threshold: float, data: Tensor, residual: Tensor | None) -> None:
    """Write the codes of `values + residual` against the threshold."""
    if kernels.fast():
        left = values if residual is None else residual
        kernel = kernels.get("pack_levels")
        if not kernel(values.numpy(), left.numpy(), residual is not None, np.float32(threshold), data.numpy()):
            refuse(values, layout, residual)
        return
    refuse_non_finite(values, layout)
    whole = values if residual is None else residual.add_(values)
    level = torch.tensor(threshold)
    up, down = whole >= level, whole <= -level
    write(up.long() + 2 * down.long(), data)
    if residual is not None:
        residual -= level * up
        residual += level * down


def add(data: Tensor, level: float, out: Tensor) -> None:
    """out += what the codes say."""
    if kernels.fast():
        kernels.get("add_levels")(data.numpy(), np.float32(level), out.numpy())
        return
    codes = ((data[:, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)) & 3).view(-1)[: len(out)]
    out += torch.tensor([0.0, level, -level, 0.0])[codes.long()]


def check(data: Tensor) -> None:
    """Raise PayloadError if a code is 3, which no sender writes."""
    # A code of 3 would decode to nothing silently; that bits were changed must be noticed.
    three = kernels.get("any_three")(data.numpy()) if kernels.fast() else bool((data & (data >> 1) & 0x55).any())
    if three:
        raise PayloadError("a payload holds a code of two bits that no sender writes; it was changed or is foreign")
