"""Samples that one worker was given alone and has trained, as workers and servers tell each other."""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from shoal.core.errors import PayloadError
from shoal.membership.protocol import Range

PassNumbers = tuple[int, int, int]
"""Loader, epoch, number."""
MOST_POSITIONS = 1 << 24
"""Of one worker in one round; a peer that reports more is not believed."""


class TrainedSamples(msgspec.Struct, array_like=True, frozen=True):
    """What a worker has trained of one pass since the last round, or in one step."""

    key: PassNumbers
    ranges: Annotated[list[Range], msgspec.Meta(max_length=65536)]


def count_samples(trained: Iterable[TrainedSamples]) -> int:
    return sum(end - begin for each in trained for begin, end in each.ranges)


def check_trained(trained: Iterable[TrainedSamples]) -> None:
    """Raise PayloadError for what no loader deals."""
    found = list(trained)
    ranges = [one for each in found for one in each.ranges]
    if any(not 0 <= begin < end for begin, end in ranges):
        raise PayloadError(f"a range of samples among {ranges[:3]} is empty or negative")
    if (samples := count_samples(found)) > MOST_POSITIONS:
        raise PayloadError(f"{samples} samples of one worker in one round; at most {MOST_POSITIONS} are believed")
