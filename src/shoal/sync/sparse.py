"""Sparse gradients, as nn.Embedding(sparse=True) makes them: rows and their values are gathered, not summed.

message = had (1 byte) | number of rows (8 bytes) | rows (int64) | values

Peers say which rows are written, so rows are checked before use: a message whose rows are not ascending rows of the
parameter is refused with its sender's name.
"""

import struct
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.synchronizer import Part

_HEAD = struct.Struct("<?q")


Rows = tuple[Tensor, Tensor]
"""Rows of a parameter, and their values."""


class SparseMeans:
    """The sparse gradients of one part, gathered inside the step's transaction."""

    def __init__(self, exchange: GradientExchange, part: Part) -> None:
        self.exchange, self.part = exchange, part
        self.had: set[int] = set()
        """Parameters of which anybody had a gradient in the last exchange."""
        self._wanted = sorted(set(part.sparse) - set(part.served))
        self._open = list(self._wanted)
        """Those of this exchange; none of a pass that came to nothing."""
        self._gathered: dict[int, list[Rows | None]] = {}
        self._dense: set[int] = set()

    def clear(self) -> None:
        """The next exchange begins, or this one among other members."""
        self._gathered, self._open = {}, list(self._wanted)

    def leave_out(self) -> None:
        """The pass came to nothing, and none of it has left."""
        self._gathered, self._open = {}, []

    @property
    def is_complete(self) -> bool:
        return len(self._gathered) == len(self._open)

    def gather(self, empty_handed: bool) -> None:
        """Everybody's gradients of what was not gathered yet."""
        for index in self._open:
            if index not in self._gathered:
                self._gathered[index] = self._gather(index, None if empty_handed else self.part.parameters[index].grad)

    def _gather(self, index: int, gradient: Tensor | None) -> list[Rows | None]:
        parameter = self.part.parameters[index]
        # tied to a dense layer, a sparse embedding has a dense gradient, and must keep it
        dense = gradient is not None and not gradient.is_sparse
        (self._dense.add if dense else self._dense.discard)(index)
        if gradient is not None:
            # coalesced: rows that ascend, once each, which is all that `_unpack` accepts
            gradient = (gradient.to_sparse(1) if dense else gradient).coalesce()
            self.exchange.observer.raw_bytes += 4 * gradient.values().numel()
        message = _pack(gradient, self.exchange.weight)
        self.exchange.observer.sent_bytes += len(message)
        read = partial(_unpack, parameter=parameter)
        said = self.exchange.gather(message, limit=_largest(parameter), check=read)
        return [read(data) for data in said]

    def deliver(self, factor: float) -> None:
        """Every parameter's gradient becomes the mean, if anybody had one."""
        for index, parts in self._gathered.items():
            present = [part for part in parts if part is not None]
            (self.had.add if present else self.had.discard)(index)
            if present:
                self.part.parameters[index].grad = self._mean(index, present, factor)

    def _mean(self, index: int, present: Sequence[Rows], factor: float) -> Tensor:
        rows = torch.cat([rows for rows, _ in present])
        values = torch.cat([values for _, values in present])
        values = values if factor == 1.0 else values * factor
        shape = self.part.parameters[index].shape
        # rows were checked when they were read
        mean = torch.sparse_coo_tensor(rows[None], values, shape, check_invariants=False).coalesce()
        return mean.to_dense() if index in self._dense else mean


def _pack(gradient: Tensor | None, weight: float) -> bytes:
    if gradient is None:
        return _HEAD.pack(False, 0)
    rows, values = gradient.indices()[0].cpu(), (gradient.values() * weight).cpu().contiguous()
    return _HEAD.pack(True, len(rows)) + rows.numpy().tobytes() + values.view(torch.uint8).numpy().tobytes()


def _unpack(data: bytes, parameter: Tensor) -> Rows | None:
    """What `_pack` packed; PayloadError if it did not."""
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
