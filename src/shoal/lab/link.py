"""A link: the wire between one host and the switch, with the same properties in both directions."""

import msgspec

from shoal.core.errors import UsageError
from shoal.core.units import BitRate, TimeSpan, parse_share

MOST_BURST = 1e6


class LabLink(msgspec.Struct, frozen=True, kw_only=True):
    """Everything is per link: from host a to host b a frame passes a's link and b's."""

    rate: BitRate = BitRate()
    delay: TimeSpan = TimeSpan()
    """One way, through this link."""
    jitter: TimeSpan = TimeSpan()
    """The delay of each frame is uniform in delay ± jitter; frames never overtake each other."""
    loss: float = 0.0
    """Share of frames lost, each way."""
    burst: float = 1.0
    """Mean number of frames lost in a row; 1 is one coin per frame, without memory."""

    def __post_init__(self) -> None:
        parse_share(self.loss)
        if not 1 <= self.burst <= MOST_BURST:
            raise UsageError(f"burst {self.burst} is out of range; write a mean length from 1 to {MOST_BURST:.0f}")


def check_link(link: LabLink) -> LabLink:
    """The rules between a link's values; not part of `LabLink`, since events may change one value after the other."""
    if link.jitter > link.delay:
        raise UsageError(f"jitter {link.jitter} is more than delay {link.delay}; a frame cannot arrive before it left")
    # Between two bursts of mean length b at least one frame gets through, so at most b of b + 1 are lost.
    if link.burst > 1 and link.loss > link.burst / (link.burst + 1):
        raise UsageError(f"loss {link.loss} cannot come in bursts of {link.burst}; raise burst or leave it out")
    return link
