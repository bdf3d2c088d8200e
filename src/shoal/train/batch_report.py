"""What workers tell each other of the batches they were dealt since the last step, where their lists may differ."""

import msgspec

from shoal.core.errors import PayloadError
from shoal.data.remaining import Range

Key = tuple[int, int, int]
"""Of a pass: loader, epoch, number."""
MOST_POSITIONS = 1 << 20
"""Of one worker between two steps; a peer that reports more is not believed."""


class ReportedBatch(msgspec.Struct, array_like=True):
    """One worker's part of one batch."""

    key: Key
    stream: int
    ranges: list[Range]
    samples: int
    used: bool


class BatchReport(msgspec.Struct):
    """What a worker has been given since the last step; `waits`: it takes no part in this one."""

    waits: bool
    batches: list[ReportedBatch]


def read_report(data: bytes) -> BatchReport:
    """What a worker reports; PayloadError for positions that no loader deals."""
    report = msgspec.json.decode(data, type=BatchReport)
    ranges = [one for batch in report.batches for one in batch.ranges]
    if any(not 0 <= begin < end for begin, end in ranges):
        raise PayloadError(f"a range of samples among {ranges[:3]} is empty or negative")
    if (count := sum(end - begin for begin, end in ranges)) > MOST_POSITIONS:
        raise PayloadError(f"{count} samples between two steps; at most {MOST_POSITIONS} are believed")
    if any(batch.samples < 0 or batch.stream < 0 for batch in report.batches):
        raise PayloadError("a negative number of samples or stream")
    return report
