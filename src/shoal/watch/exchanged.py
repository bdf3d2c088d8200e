"""What the buckets of one join took, over all steps that were measured of it."""

import msgspec

from shoal.core.events import BucketFigures, BucketTimes
from shoal.core.merging import is_same_exchange, merge_buckets


class ExchangeTotals(msgspec.Struct, kw_only=True):
    """Means per measured step of one worker; a codec that takes another's place begins anew."""

    join: int
    codec: str
    meets: str
    measured: int
    buckets: list[BucketFigures]
    span: float
    room: float
    step_seconds: float
    rate: float | None
    rtt: float | None

    def total(self, figure: str) -> float:
        """Over the buckets: `encode`, `wait`, `decode`, `raw`, `sent`, `wire`."""
        return float(sum(getattr(bucket, figure) for bucket in self.buckets))


def add_buckets(known: list[ExchangeTotals], event: BucketTimes) -> None:
    """Take in one more event of a worker."""
    new = ExchangeTotals(**{name: getattr(event, name) for name in ExchangeTotals.__struct_fields__})
    for place, old in enumerate(known):
        if old.join == new.join:
            known[place] = merge_buckets(old, new) if is_same_exchange(old, new) else new
            return
    known.append(new)
