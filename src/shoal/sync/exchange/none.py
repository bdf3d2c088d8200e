"""No exchange: every worker trains by itself on its share of the data.

The null member of the family and the floor of every benchmark: the same step without any communication. Do not use it
to train one model: p workers give p different ones.
"""

from collections.abc import Mapping

from shoal.groups.base import LARGEST_WORD, Check
from shoal.membership.session import FixedSession
from shoal.sync.exchange.base import GradientExchange
from shoal.wire.bucket import BucketPlan, GradientBucket


class NoExchange(GradientExchange):
    """Opens no bucket, so nothing is ever started."""

    weight = 1.0
    peers = ()
    compresses = False
    session = FixedSession(0, 1)

    def open_numbered(self, plans: Mapping[int, BucketPlan]) -> dict[int, GradientBucket]:
        return {}

    def start(self, index: int) -> None:
        pass

    def advance(self) -> None:
        pass

    def finish(self, index: int) -> None:
        pass

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return [data]
