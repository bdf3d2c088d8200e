"""When a checkpoint is due: by time, by steps, never, or by what it costs.

`auto` is the interval that loses least when a run fails once in `MTBF` seconds: sqrt(2 * cost * MTBF). Young, "A first
order approximation to the optimum checkpoint interval", CACM 1974. Give a time where losing more than that is worse
than being slower.
"""

import math
import re
from dataclasses import dataclass

from shoal.core.errors import UsageError

MTBF = 3600.0
"""Seconds between failures, as long as nobody knows better."""
BYTES_PER_SECOND, LEAST_COST = 500e6, 0.01
"""What a checkpoint costs before one was made: hashing and writing, and a little for its files."""
_SHAPE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|steps?)")
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class CheckpointInterval:
    """`seconds` or `steps` between checkpoints; neither: `auto`, unless it is off."""

    seconds: float | None = None
    steps: int | None = None
    off: bool = False

    @classmethod
    def parse(cls, text: str, what: str = "--checkpoint") -> "CheckpointInterval":
        if text in ("auto", "off"):
            return cls(off=text == "off")
        found = _SHAPE.fullmatch(text.strip())
        number = float(found[1]) if found else 0.0
        if found is None or number <= 0 or (found[2] not in _UNITS and not number.is_integer()):
            raise UsageError(f"{what} {text!r} is not an interval; give auto, off, a time (30s, 5min) or 500steps")
        if found[2] in _UNITS:
            return cls(seconds=number * _UNITS[found[2]])
        return cls(steps=int(number))

    def wait(self, cost: float) -> float:
        """Seconds from one checkpoint to the next, if one costs `cost` seconds."""
        if self.steps is not None or self.off:
            return math.inf
        return self.seconds if self.seconds is not None else math.sqrt(2 * cost * MTBF)


def guess(size: int) -> float:
    """What a checkpoint of `size` bytes will cost, in seconds."""
    return LEAST_COST + size / BYTES_PER_SECOND
