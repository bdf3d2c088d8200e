"""Sparse gradients, as nn.Embedding(sparse=True) makes them: rows and their values are gathered, not summed.

message = had (1 byte) | number of rows (8 bytes) | rows (int64) | values

Peers say which rows are written, so rows are checked before use: a message whose rows are not ascending rows of the
parameter is refused with its sender's name.
"""

import struct
from functools import partial

import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.sync.exchange.base import GradientExchange

_HEAD = struct.Struct("<?q")


def mean_of_sparse(
    exchange: GradientExchange, parameter: Tensor, gradient: Tensor | None, factor: float = 1.0
) -> Tensor | None:
    """Return the mean over all workers of a parameter's sparse gradient; None if nobody had one."""
    # tied to a dense layer, a sparse embedding has a dense gradient, and must keep it
    dense = gradient is not None and not gradient.is_sparse
    if gradient is not None:
        gradient = (gradient.to_sparse(1) if dense else gradient).coalesce()
        exchange.observer.raw_bytes += 4 * gradient.values().numel()
    message = _pack(gradient, exchange.weight)
    exchange.observer.sent_bytes += len(message)
    read = partial(_unpack, parameter=parameter)
    parts = [read(data) for data in exchange.gather(message, limit=_largest(parameter), check=read)]
    present = [part for part in parts if part is not None]
    if not present:
        return parameter.grad
    rows = torch.cat([rows for rows, _ in present])
    values = torch.cat([values for _, values in present])
    values = values if factor == 1.0 else values * factor
    mean = torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False).coalesce()
    return mean.to_dense() if dense else mean


def _pack(gradient: Tensor | None, weight: float) -> bytes:
    if gradient is None:
        return _HEAD.pack(False, 0)
    rows, values = gradient.indices()[0].cpu(), (gradient.values() * weight).cpu().contiguous()
    return _HEAD.pack(True, len(rows)) + rows.numpy().tobytes() + values.view(torch.uint8).numpy().tobytes()


def _unpack(data: bytes, parameter: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return what `_pack` packed; raise PayloadError for anything else."""
    if len(data) < _HEAD.size or data[0] > 1:
        raise PayloadError(f"a sparse gradient of {len(data)} bytes has no head; it was cut or is foreign")
    had, count = _HEAD.unpack_from(data)
    rows_there, row = parameter.shape[0], parameter[:1].numel() * parameter.element_size()
    most = rows_there if had else 0
    if not 0 <= count <= most or len(data) != _HEAD.size + count * (8 + row):
        raise PayloadError(
            f"a sparse gradient of {len(data)} bytes says it holds {count} of {most} rows; it was cut or is foreign"
        )
    if not had:
        return None
    shape = (count, *parameter.shape[1:])
    if count == 0:
        return torch.zeros(0, dtype=torch.int64, device=parameter.device), parameter.new_zeros(shape)
    body = bytearray(data[_HEAD.size :])
    rows = torch.frombuffer(body, dtype=torch.int64, count=count)
    if int(rows[0]) < 0 or int(rows[-1]) >= rows_there or not bool((rows[1:] > rows[:-1]).all()):
        raise PayloadError(
            f"a sparse gradient's rows do not ascend within {rows_there} (the first is {int(rows[0])}, the last "
            f"{int(rows[-1])}); it was changed or is foreign"
        )
    values = torch.frombuffer(body, dtype=parameter.dtype, offset=8 * count).view(shape)
    return rows.to(parameter.device), values.to(parameter.device)


def _largest(parameter: Tensor) -> int:
    """Return the most bytes a message can have."""
    return _HEAD.size + parameter.shape[0] * 8 + parameter.numel() * parameter.element_size()
