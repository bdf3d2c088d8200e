"""When the buckets of one exchange left and came in: how long anything was under way, and how much of that was hidden.

bucket 0   left ─────────── in                    under way: what any of the lines covers
bucket 1            left ───────────── in         exposed:   what the worker waited of it
worker     computes ───────────── waits │ …       hidden:    the rest
"""

from collections.abc import Sequence

from shoal.sync.cost import ExchangeCost


class BucketFlight:
    """Of the exchange that began at `began`."""

    def __init__(self, began: float = 0.0) -> None:
        self.began = began
        self._left: dict[int, float] = {}
        self._done: dict[int, float] = {}
        self._seen: dict[int, tuple[float, float]] = {}
        """Of the buckets whose engine tells when they came in: when they left and when they were in."""
        self._exposed: dict[int, float] = {}

    def left(self, number: int, moment: float) -> None:
        self._left[number] = moment

    def landed(self, number: int, began: float, ended: float, came: float | None) -> None:
        """The worker waited for it from `began` to `ended`; it `came` in at another time, if that is known."""
        self._done[number] = ended
        if came is not None:
            self._seen[number] = (self._left[number], came)
            self._exposed[number] = ended - began

    def tell(self, spent: ExchangeCost, order: Sequence[int]) -> None:
        """Add it to what was spent so far."""
        spent.ready[:] = [self._left[number] - self.began for number in order]
        spent.done[:] = [self._done[number] - self.began for number in order]
        transfer, end = 0.0, 0.0
        # the union of all spans: what overlaps counts once
        for left, came in sorted(self._seen.values()):
            transfer += max(0.0, came - max(left, end))
            end = max(end, came)
        spent.transfer += transfer
        spent.exposed += min(transfer, sum(self._exposed.values()))
