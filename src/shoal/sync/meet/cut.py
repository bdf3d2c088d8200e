"""A bucket divided among the workers that own a share of it each, and the bytes its payloads may take.

Only what dense codecs write can be divided so: what p sparsifiers choose hardly overlaps, so a sum of it is not as
small as they are.
"""

import struct
from dataclasses import dataclass

from shoal.sync.meet.shares import Share, shares
from shoal.wire.codec import Codec
from shoal.wire.codecs.fixed import Fixed
from shoal.wire.codecs.int8 import Int8
from shoal.wire.codecs.onebit import OneBit
from shoal.wire.codecs.qsgd import Qsgd
from shoal.wire.codecs.raw import Raw
from shoal.wire.codecs.ternary import Ternary
from shoal.wire.codecs.twobit import TwoBit
from shoal.wire.head import padded
from shoal.wire.layout import Layout
from shoal.wire.wrappers.feedback import Feedback
from shoal.wire.wrappers.parts import Parts, Piece

DENSE = (OneBit, TwoBit, Ternary, Int8, Qsgd, Fixed)
"""Codecs that say something of every element: their sums are as dense as they are."""
HEAD = struct.Struct("<BxxxI")
"""What a payload is, and how many bytes of it are the codec's."""
RAW = Raw()


def divisible(codec: Codec) -> bool:
    """Whether payloads of this codec can meet in two stages."""
    if not isinstance(codec, Parts):
        return False
    inner = codec.codec
    return isinstance(inner.codec if isinstance(inner, Feedback) else inner, DENSE)


@dataclass(frozen=True)
class Cut:
    """One bucket, divided."""

    layout: Layout
    coded: Piece
    plain: Piece
    shares: list[Share]

    @property
    def prefix(self) -> int:
        return padded(HEAD.size + -(-len(self.layout.parts) // 8))

    def bound(self, codec: Codec) -> int:
        """The most bytes of any share."""
        most = max(padded(codec.bound(share.layout)) + RAW.bound(share.plain_layout) for share in self.shares)
        return -(-(self.prefix + most) // 64) * 64


def cut(codec: Parts, layout: Layout, workers: int) -> Cut:
    coded, plain = codec.divided(layout)
    return Cut(layout, coded, plain, shares(coded.layout, plain.layout, workers))


def rooms(codec: Parts, layout: Layout, most: int) -> tuple[int, int]:
    """Bytes that suffice for a share of every worker, and for any single share, however many of `most` there are."""
    bounds = {workers: cut(codec, layout, workers).bound(codec.codec) for workers in range(1, most + 1)}
    return max((n * bound for n, bound in bounds.items()), default=0), max(bounds.values(), default=0)
