"""A bucket cut into one share per worker, its owner: where each lies, and how many bytes its payloads may take."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.wire.codec import GradientCodec
from shoal.wire.codecs.raw import RawCodec
from shoal.wire.head import padded
from shoal.wire.layout import FlatLayout, LayoutPart
from shoal.wire.wrappers.parts import LayoutPiece, PartialCodec

STEP = 16
"""Elements: codes of any width begin at a byte."""


@dataclass(frozen=True)
class BucketShare:
    """One owner's part of a bucket."""

    coded: slice
    """Of the coded layers side by side."""
    plain: slice
    """Of the others side by side."""
    layout: FlatLayout
    """Of the coded slice: pieces of layers as matrices of one row."""

    @property
    def plain_layout(self) -> FlatLayout:
        return FlatLayout.flat(self.plain.stop - self.plain.start, "plain")


def shares(coded: FlatLayout, plain: FlatLayout, workers: int) -> list[BucketShare]:
    """One for each worker, in order of rank; some are empty if there is little."""
    cuts = zip(_cuts(coded.numel, workers), _cuts(plain.numel, workers), strict=True)
    return [BucketShare(one, other, _within(coded.parts, one)) for one, other in cuts]


def _cuts(numel: int, workers: int) -> list[slice]:
    edges = [min(numel, -(-numel * number // workers // STEP) * STEP) for number in range(workers)] + [numel]
    return [slice(start, end) for start, end in pairwise(edges)]


def _within(parts: Sequence[LayoutPart], cut: slice) -> FlatLayout:
    found = []
    for part in parts:
        length = min(part.end, cut.stop) - max(part.offset, cut.start)
        if length > 0:
            found.append((part.name, (1, length)))
    return FlatLayout.of(found)


HEAD = struct.Struct("<BxxxI")
"""What a payload is, and how many bytes of it are the codec's."""
RAW = RawCodec()


@dataclass(frozen=True)
class BucketCut:
    """One bucket, divided."""

    layout: FlatLayout
    coded: LayoutPiece
    plain: LayoutPiece
    shares: list[BucketShare]

    @property
    def prefix(self) -> int:
        return padded(HEAD.size + -(-len(self.layout.parts) // 8))

    def max_bytes(self, codec: GradientCodec) -> int:
        """The most bytes of any share."""
        most = max(padded(codec.max_bytes(share.layout)) + RAW.max_bytes(share.plain_layout) for share in self.shares)
        # pieces lie this far apart in one area, and each must begin aligned
        return -(-(self.prefix + most) // 64) * 64


def cut(codec: PartialCodec, layout: FlatLayout, workers: int) -> BucketCut:
    coded, plain = codec.split_layout(layout)
    return BucketCut(layout, coded, plain, shares(coded.layout, plain.layout, workers))


def rooms(codec: PartialCodec, layout: FlatLayout, most: int) -> tuple[int, int]:
    """Bytes that suffice for a share of every worker, and for any single share, however many of `most` there are."""
    bounds = {workers: cut(codec, layout, workers).max_bytes(codec.codec) for workers in range(1, most + 1)}
    return max((n * bound for n, bound in bounds.items()), default=0), max(bounds.values(), default=0)
