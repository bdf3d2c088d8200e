"""What the buckets of one join took, over all steps that were measured of it."""

import msgspec
from msgspec import structs

from shoal.core.events import SECONDS, BucketFigures, Buckets

_SUMS = [field.name for field in structs.fields(BucketFigures) if field.type is float]


class Exchanged(msgspec.Struct, kw_only=True):
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


def add_buckets(known: list[Exchanged], event: Buckets) -> None:
    """Take in one more event of a worker."""
    new = Exchanged(**{name: getattr(event, name) for name in Exchanged.__struct_fields__})
    for place, old in enumerate(known):
        if old.join == new.join:
            alike = [b.layers for b in old.buckets] == [b.layers for b in new.buckets]
            known[place] = _merged(old, new) if alike and old.codec == new.codec else new
            return
    known.append(new)


def _merged(old: Exchanged, new: Exchanged) -> Exchanged:
    measured = old.measured + new.measured

    def mean(before: float, now: float) -> float:
        return round((before * old.measured + now * new.measured) / measured, SECONDS)

    buckets = [
        structs.replace(b, **{name: mean(getattr(a, name), getattr(b, name)) for name in _SUMS})
        for a, b in zip(old.buckets, new.buckets, strict=True)
    ]
    means = {name: mean(getattr(old, name), getattr(new, name)) for name in ("span", "room", "step_seconds")}
    # what a link can do is the most it was seen to do: busy processors make it look slower than it is
    rate = max((rate for rate in (old.rate, new.rate) if rate), default=None)
    rtt = min((rtt for rtt in (old.rtt, new.rtt) if rtt), default=None)
    return structs.replace(new, measured=measured, buckets=buckets, rate=rate, rtt=rtt, **means)
