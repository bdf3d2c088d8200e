"""Sending the factors of linear layers' gradients: the term, and which layers are worth it by their bytes."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from shoal.plan.term import CodecTerm
from shoal.wire.settings import check_whole

VALUE = 4
"""Bytes of a number."""


class FactorsTerm(CodecTerm, frozen=True, tag="factors"):
    """Of a linear layer the batches of inputs and of output gradients travel, and everybody multiplies them: the
    gradient of its weights is their product. For layers whose factors have fewer bytes than the sum of their gradients
    with `batch` rows on each worker; all other gradients are summed. Where a product is not the gradient (autocast,
    weights that are used otherwise too, more rows than `batch`), the gradient travels, and a warning says so. Exact to
    float precision.

    Costs: with p workers, (p-1) batch (m+n) numbers for a layer of m x n; on every worker p products of its size, and
    one more to compare.
    Cites: Chilimbi et al. 2014, "Project Adam: Building an Efficient and Scalable Deep Learning Training System"; Zhang
    et al. 2017, "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on GPU Clusters".
    Avoid: with many rows (sequences count batch times length) and many workers, because everybody sends to everybody;
    on hosts with different processors, whose products may round differently.
    """

    name: ClassVar[str] = "factors"

    batch: int = 32
    """The most rows that pass through a layer on one worker in a step."""
    workers: int = 2
    """The number of workers whose bytes are compared."""

    def __post_init__(self) -> None:
        check_whole(self, "batch", self.batch, 1, 1 << 20)
        check_whole(self, "workers", self.workers, 2, 1 << 16)

    def is_worth_it(self, shape: Sequence[int]) -> bool:
        """Whether a linear layer's weights of this shape travel as factors: the same for any members."""
        # By the term's `workers`, not the present number: members that change must not change how a layer travels.
        return len(shape) == 2 and self.factor_bytes(shape, self.workers) < sum_bytes(shape, self.workers)

    def factor_bytes(self, shape: Sequence[int], workers: int) -> int:
        """Bytes that each of `workers` workers sends of a layer as factors."""
        return VALUE * (workers - 1) * self.batch * (shape[0] + shape[1])


def sum_bytes(shape: Sequence[int], workers: int) -> float:
    """Bytes that each of `workers` workers sends for the sum of a matrix."""
    # What a ring sends.
    return VALUE * 2 * (workers - 1) / workers * shape[0] * shape[1]


class LayerChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How one matrix travels, and what either way costs a worker."""

    layer: str
    shape: tuple[int, int]
    sends: str
    """factors, or sum."""
    factors: int
    """Bytes a step as factors."""
    sum: int
    """Bytes a step as a sum."""

    def __str__(self) -> str:
        other = f"sum {self.sum:,}" if self.sends == "factors" else f"factors {self.factors:,}"
        own = self.factors if self.sends == "factors" else self.sum
        size = " x ".join(map(str, self.shape))
        return f"{self.layer} ({size}): {self.sends}, {own:,} bytes a step ({other})"


def choose_layers(term: FactorsTerm, shapes: Mapping[str, Sequence[int]], workers: int) -> list[LayerChoice]:
    """What of each matrix travels, as if all matrices were weights of linear layers."""
    return [
        LayerChoice(
            layer=name,
            shape=(shape[0], shape[1]),
            sends="factors" if term.is_worth_it(shape) else "sum",
            factors=term.factor_bytes(shape, workers),
            sum=int(sum_bytes(shape, workers)),
        )
        for name, shape in shapes.items()
        if len(shape) == 2
    ]
