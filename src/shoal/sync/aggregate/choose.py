"""Whether payloads are gathered or meet in two stages: by the bytes a worker sends, which all workers compute alike."""

from collections.abc import Sequence
from typing import cast

from shoal.sync.aggregate.gather import prefix_of
from shoal.sync.aggregate.shares import cut
from shoal.wire.codec import GradientCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.parts import PartialCodec

SAVES = 0.75
"""Two stages must send less than this share of what gathering sends: they cost a latency and a second rounding."""


def gathered(codec: GradientCodec, layouts: Sequence[FlatLayout], workers: int) -> int:
    """Bytes a worker sends a step, at the most, if everybody gets everybody's payload."""
    return (workers - 1) * sum(prefix_of(layout) + codec.max_bytes(layout) for layout in layouts)


def staged(codec: GradientCodec, layouts: Sequence[FlatLayout], workers: int) -> int:
    """Bytes a worker sends a step, at the most, if it sends shares to their owners and its own sum to all."""
    if not codec.divisible:
        return gathered(codec, layouts, workers)
    rule = cast(PartialCodec, codec)
    return 2 * (workers - 1) * sum(cut(rule, layout, workers).max_bytes(rule.codec) for layout in layouts)


def way(gathered: int, staged: int | None, workers: int) -> str:
    """`gather` or `twostage`, by what either sends; `staged` is None where a codec does not allow it."""
    # between two workers two stages send no less
    return "twostage" if staged is not None and workers > 2 and staged < SAVES * gathered else "gather"


def choose(codec: GradientCodec, layouts: Sequence[FlatLayout], workers: int) -> str:
    """The way of these buckets."""
    two = staged(codec, layouts, workers) if codec.divisible else None
    return way(gathered(codec, layouts, workers), two, workers)
