"""Counts of rounds: what all came to so far, and what belongs to the one under way."""

from dataclasses import dataclass


@dataclass
class RoundTotals:
    """Of all rounds so far, on one worker."""

    rounds: int = 0
    steps: int = 0
    """Steps of the optimizer that counts them."""
    seconds: float = 0.0
    """From the end of a worker's own steps until it has the new parameters: packing, waiting, transfer."""
    sent: int = 0
    wire: int = 0
    dropped: int = 0
    """Rounds in which this worker's change was not finite, and did not count."""
    spoiled: int = 0
    """Rounds in a row, up to the last, in which nobody's change counted though this worker's was finite."""


@dataclass
class RoundInFlight:
    """What left and has not been taken in yet."""

    own: float
    """This worker's weight in it."""
    bad: bool
    """Whether its parameters were not finite, so that they do not count."""
    sent: int
    wire: int
    """Bytes of all rounds when it left."""
