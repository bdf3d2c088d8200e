"""Pieces of tensors with the largest magnitude travel, as many as a budget of bytes holds; the others wait.

Wei et al., "Managed Communication and Consistency for Fast Data-Parallel Iterative Analytics" (Bösen), SoCC 2015: spare
bandwidth goes to the updates that matter most, row by row. A piece is a row here, or a part of a long one. As topk,
but whole pieces: places cost next to nothing and choosing costs one pass, so that large shares may travel. Do not use
it without error feedback, nor for gradients whose large elements lie scattered: topk sends those alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire import bits
from shoal.wire.codec import GradientCodec, State, refuse_non_finite
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, check_finite, check_length, padded, read_head, write_head
from shoal.wire.layout import FlatLayout, LayoutPart

PIECE = 256
"""Largest number of elements of a piece."""
VALUE = 4
Numbers = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LargestCodec(GradientCodec):
    """At most `budget` bytes of a tensor, if it has more; never less than a piece."""

    name = "largest"
    code = 40
    kernel_names = bits.PLACES_KERNELS
    fixed_size = False
    budget: int

    def max_bytes(self, layout: FlatLayout) -> int:
        count = len(spans(layout))
        return HEAD.size + padded(count // 4 + 4) + VALUE * layout.numel  # places take 2 bits each at the most

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        whole = values if residual is None else residual.add_(values)
        refuse_non_finite(values, layout, residual)
        (chosen,) = choose([weigh(whole, layout)], [layout], self.budget)
        return self.write(chosen, whole, layout, out, clear=residual is not None)

    def write(self, chosen: Numbers, whole: Tensor, layout: FlatLayout, out: Tensor, *, clear: bool) -> int:
        """A payload of the chosen pieces; `clear` takes them out of `whole`."""
        count, pieces = len(chosen), len(spans(layout))
        size = bits.places_size(count, pieces)
        start = HEAD.size + padded(size)
        write_head(out, self.code, layout.numel, count)
        out[HEAD.size + size : start].zero_()
        bits.write_places(chosen, pieces, out[HEAD.size : HEAD.size + size].numpy())
        where = elements(chosen, layout)
        end = start + VALUE * len(where)
        body, source = out[start:end].view(torch.float32).numpy(), whole.numpy()
        body[:] = source[where]
        if clear:
            source[where] = 0.0
        return end

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        count, _ = read_head(payload, self.code, layout.numel)
        pieces = len(spans(layout))
        size = bits.places_size(count, pieces)
        start = HEAD.size + padded(size)
        if count > pieces or payload.numel() < start:
            raise PayloadError(f"a payload of {payload.numel()} bytes says {count} of {pieces} pieces; it was changed")
        where = elements(bits.read_places(payload[HEAD.size : HEAD.size + size].numpy(), count, pieces), layout)
        check_length(payload, start + VALUE * len(where))
        body = payload[start:].view(torch.float32)
        check_finite(body, "value")
        out.numpy()[where] += body.numpy()


def spans(layout: FlatLayout) -> Numbers:
    """Begin and end of every piece: rows of the table, never across two layers."""
    return layout.blocks(PIECE, 8 * VALUE)[:-1, :2]


def elements(chosen: Numbers, layout: FlatLayout) -> Numbers:
    """The elements of some pieces, in order."""
    begin, end = spans(layout)[chosen].T
    lengths = end - begin
    firsts = np.cumsum(lengths) - lengths
    return np.repeat(begin - firsts, lengths) + np.arange(int(lengths.sum()))


def within(part: LayoutPart, layout: FlatLayout) -> npt.NDArray[np.bool_]:
    """Which pieces are a layer's."""
    begin = spans(layout)[:, 0]
    return (begin >= part.offset) & (begin < part.end)


def weigh(whole: Tensor, layout: FlatLayout) -> Weights:
    """The mean magnitude of every piece."""
    begin, end = spans(layout).T
    # `reduceat` refuses an empty list of beginnings.
    if not len(begin):
        return np.zeros(0, np.float32)
    means: Weights = (np.add.reduceat(whole.abs().numpy(), begin) / (end - begin)).astype(np.float32)
    return means


def choose(weights: Sequence[Weights], layouts: Sequence[FlatLayout], budget: int) -> list[Numbers]:
    """Of several tensors together: the pieces of largest weight that the budget holds; a weight below 0 never goes.

    Heads, and places at their longest, are paid from the budget too.
    """
    sizes = [VALUE * np.diff(spans(layout), axis=1)[:, 0] for layout in layouts]
    left = budget - sum(HEAD.size + padded(len(size) // 4 + 4) for size in sizes)
    weight, size = np.concatenate(weights), np.concatenate(sizes)
    # Stable: equal pieces go in order of place, so the choice is the same wherever it is made.
    order = np.argsort(-weight, kind="stable")
    order = order[weight[order] >= 0]
    # One piece in any case: a budget below it would hold everything back for ever.
    count = max(1, int(np.searchsorted(np.cumsum(size[order]), left, side="right")))
    chosen = np.zeros(len(weight), bool)
    chosen[order[:count]] = True
    ends = np.cumsum([len(one) for one in weights])
    return [np.flatnonzero(part) for part in np.split(chosen, ends[:-1])]
