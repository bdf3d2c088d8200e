"""Low rank: a matrix travels as two thin factors, found by one step of power iteration from the last ones.

Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019. The
factors of all workers add up, so an all-reduce carries them, in two rounds:

    P = M Q        sum over workers        orthogonal columns of the sum
    Q = M^T P      sum over workers        M ≈ P Q^T;  Q is where the next step begins

`encode_into` and `decode_add` do both rounds for one worker. Tensors of one dimension, and matrices too small to gain,
travel whole. Do not use it for models of many small matrices, nor without feedback.

    head | P and Q of every matrix, or the whole tensor, float32
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.seeds import mix
from shoal.wire.builtin import LowRankSettings
from shoal.wire.codec import GradientCodec, State, refuse_non_finite
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, check_finite, check_length, read_head, write_head
from shoal.wire.layout import FlatLayout, LayoutPart

KEPT = "q."
# Dividing by such a norm would make numbers that overflow when they are multiplied.
SMALL = 1e-28
"""Norms below are noise, or nothing."""


@dataclass(frozen=True)
class LowRankCodec(LowRankSettings, GradientCodec):
    """Rank `rank` for every matrix that is larger than its factors."""

    code = 15
    summed_as = "factors"

    def _rank(self, part: LayoutPart) -> int:
        """Return the rank of a layer's factors; 0 if the layer travels whole."""
        rows, columns = part.matrix
        rank = min(self.rank, rows, columns)
        # A matrix whose factors would be as large as itself gains nothing and loses precision.
        return rank if len(part.shape) >= 2 and rank * (rows + columns) < rows * columns else 0

    def sizes(self, layout: FlatLayout) -> tuple[int, int]:
        """Return how many elements the first round sums (P, and whole tensors) and the second (Q)."""
        first = sum(self._rank(p) * p.matrix[0] if self._rank(p) else p.numel for p in layout.parts)
        return first, sum(self._rank(p) * p.matrix[1] for p in layout.parts)

    def summed_bytes(self, layout: FlatLayout) -> int:
        return 4 * sum(self.sizes(layout))

    def init_state(self, layout: FlatLayout) -> State:
        """Return Q of every matrix, the same on every worker: factors of different beginnings do not add up."""
        state = {}
        for part in layout.parts:
            if rank := self._rank(part):
                # Random, because a beginning that is orthogonal to the gradient would find nothing.
                generator = torch.Generator().manual_seed(mix("lowrank", part.name, *part.shape))
                state[KEPT + part.name] = torch.randn(part.matrix[1], rank, generator=generator)
        return state

    def name_state(self, state: State, layout: FlatLayout) -> State:
        kept = {name: tensor for name, tensor in state.items() if name.startswith(KEPT)}
        return {**super().name_state({n: t for n, t in state.items() if n not in kept}, layout), **kept}

    def max_bytes(self, layout: FlatLayout) -> int:
        return HEAD.size + 4 * sum(self.sizes(layout))

    def first(self, whole: Tensor, layout: FlatLayout, state: State, out: Tensor) -> None:
        """P = M Q of every matrix, and what travels whole."""
        at = 0
        for part in layout.parts:
            x, rank = whole[part.offset : part.end], self._rank(part)
            size = rank * part.matrix[0] if rank else part.numel
            place = out[at : at + size]
            if rank:
                torch.mm(x.view(part.matrix), state[KEPT + part.name], out=place.view(-1, rank))
            else:
                place.copy_(x)
            at += size

    def second(self, first: Tensor, whole: Tensor, layout: FlatLayout, out: Tensor, residual: Tensor | None) -> None:
        """Make the columns of P orthogonal, in place; Q = M^T P; `residual` becomes what the two do not say."""
        at = to = 0
        for part in layout.parts:
            rank = self._rank(part)
            size = rank * part.matrix[0] if rank else part.numel
            if rank:
                p, matrix = first[at : at + size].view(-1, rank), whole[part.offset : part.end].view(part.matrix)
                orthogonalise(p)
                q = out[to : to + rank * part.matrix[1]].view(-1, rank)
                torch.mm(matrix.T, p, out=q)
                to += q.numel()
                if residual is not None:
                    torch.addmm(matrix, p, q.T, alpha=-1.0, out=residual[part.offset : part.end].view(part.matrix))
            elif residual is not None:
                residual[part.offset : part.end].zero_()
            at += size

    def last(self, first: Tensor, second: Tensor, layout: FlatLayout, out: Tensor) -> None:
        """out += P Q^T."""
        at = to = 0
        for part in layout.parts:
            rank = self._rank(part)
            size = rank * part.matrix[0] if rank else part.numel
            place = out[part.offset : part.end]
            if rank:
                q = second[to : to + rank * part.matrix[1]].view(-1, rank)
                place.view(part.matrix).addmm_(first[at : at + size].view(-1, rank), q.T)
                to += q.numel()
            else:
                place.add_(first[at : at + size])
            at += size

    def keep(self, second: Tensor, layout: FlatLayout, state: State) -> None:
        """Begin the next step with this Q."""
        to = 0
        for part in layout.parts:
            if rank := self._rank(part):
                kept = second[to : to + rank * part.matrix[1]]
                to += kept.numel()
                if bool(kept.any()):  # a gradient of zeros has no direction to go on with
                    state[KEPT + part.name].copy_(kept.view(-1, rank))

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        refuse_non_finite(values, layout)
        size, (one, _) = self.max_bytes(layout), self.sizes(layout)
        whole = values if residual is None else residual.add_(values)
        write_head(out, self.code, layout.numel)
        body = out[HEAD.size : size].view(torch.float32)
        self.first(whole, layout, state, body[:one])
        self.second(body[:one], whole, layout, body[one:], residual)
        self.keep(body[one:], layout, state)
        return size

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        check_length(payload, self.max_bytes(layout))
        body = payload[HEAD.size :].view(torch.float32)
        check_finite(body, "factor")
        one, _ = self.sizes(layout)
        self.last(body[:one], body[one:], layout, out)


def orthogonalise(matrix: Tensor) -> None:
    """Gram and Schmidt, in place: rank is small, and every worker computes the same bits."""
    for column in range(matrix.shape[1]):
        here = matrix[:, column]
        for before in range(column):
            # The modified form, on what is left after earlier columns: rounding errors stay small.
            here -= (matrix[:, before] * here).sum() * matrix[:, before]
        norm = torch.linalg.vector_norm(here)
        if float(norm) > SMALL:
            here /= norm
        else:
            here.zero_()
