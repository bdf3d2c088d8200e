"""What an exchange has cost so far, in seconds of the training thread."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class ExchangeCost:
    """Seconds since the run began."""

    encode: float = 0.0
    wait: float = 0.0
    transfer: float = 0.0
    """Seconds in which anything was under way, where the engine tells when it came in."""
    exposed: float = 0.0
    """Of `transfer`: seconds this worker waited."""
    ready: list[float] = field(default_factory=list)
    """Of the last complete exchange, per bucket: seconds from its start until it was full."""
    done: list[float] = field(default_factory=list)
    """Of the last complete exchange, per bucket: seconds from its start until the result was back."""
    parts: Sequence[Sequence[int]] = ()
    """Of the last complete exchange, per bucket: which parameters were in it."""
