"""The head of a payload: 16 bytes with the codec and the number of elements, checked before anything is allocated.

version (1) | codec (1) | extra (2) | count (4) | elements (8)        little-endian; what follows is aligned to 16
"""

import struct

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import PayloadError

VERSION = 1
# 16 bytes, so what follows is aligned for vector instructions if the payload is.
HEAD = struct.Struct("<BBHIQ")
ALIGNED = 16
Bytes = npt.NDArray[np.uint8]


def padded(size: int) -> int:
    """Return `size` rounded up to what aligns the next part."""
    return -(-size // ALIGNED) * ALIGNED


def write_head(out: Tensor | Bytes, code: int, numel: int, count: int = 0, extra: int = 0) -> None:
    data = out.numpy() if isinstance(out, Tensor) else out
    HEAD.pack_into(data.data, 0, VERSION, code, extra, count, numel)


def read_head(payload: Tensor, code: int, numel: int) -> tuple[int, int]:
    """Return (count, extra) of a payload; raise PayloadError unless it is of this codec and this many elements."""
    if payload.numel() < HEAD.size:
        raise PayloadError(f"a payload of {payload.numel()} bytes has no head of {HEAD.size}; it was cut or is foreign")
    version, made_by, extra, count, elements = HEAD.unpack_from(payload.numpy().data)
    # Compared before a length is believed: everything else follows from these.
    if (version, made_by, elements) != (VERSION, code, numel):
        raise PayloadError(
            f"a payload of codec {made_by} (version {version}) for {elements} elements came where codec {code} "
            f"(version {VERSION}) for {numel} was due; all workers must run the same plan and model"
        )
    return count, extra


def check_length(payload: Tensor, size: int) -> None:
    """Raise PayloadError for a payload that is shorter or longer than its head implies."""
    if payload.numel() != size:
        raise PayloadError(f"a payload of {payload.numel()} bytes came where {size} were due; it was cut or is foreign")


def check_finite(values: Tensor | npt.NDArray[np.float32], what: str) -> None:
    """Raise PayloadError if a number of a payload is NaN or infinite; `what` says which numbers these are."""
    if isinstance(values, Tensor) and values.dtype is torch.float32:
        values = values.numpy()  # torch needs ten times as long for a few
    good = torch.isfinite(values) if isinstance(values, Tensor) else np.isfinite(values)
    if not bool(good.all()):
        raise PayloadError(f"a payload holds a {what} that is not finite; its sender refuses such gradients")


def check_scales(values: Tensor, what: str = "scale") -> None:
    """Raise PayloadError if a scale of a payload is not a finite number from 0 up."""
    check_finite(values, what)
    if len(values) and float(values.min()) < 0:
        raise PayloadError(f"a payload holds a {what} below 0; it was changed or is foreign")
