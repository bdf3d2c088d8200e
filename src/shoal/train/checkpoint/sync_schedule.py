"""When workers synchronize at the end of a step: seldom enough to cost nothing, and all at the same step."""

import msgspec

SYNC_SECONDS, SELDOM_SECONDS = 0.5, 10.0
"""The fewest and the most seconds from one synchronization to the next; a run that is to stop learns of it there."""
SYNC_SHARE = 0.005
"""The share of the time that synchronizations may take."""
FEWEST_STEPS, MOST_STEPS = 4, 100
"""Steps from one synchronization to the next; the latter also from one comparison of parameters to the next."""
SOON_SECONDS = 3.0
"""Fewer than `FEWEST_STEPS` lie between two of them only if they would take longer than this."""


class SyncSchedule(msgspec.Struct, frozen=True):
    """Where the others are in it, for a newcomer."""

    next: int = 0
    """The step of the next synchronization."""
    compared: int = 0
    saved: int = 0
    """Steps of the last comparison and the last checkpoint."""
    meetings: int = 0
    """How many there were."""
    shares: dict[str, int] = {}
    """How much of every batch each member is dealt; empty: all the same."""


def steps_between(step: float, sync: float) -> int:
    """Steps until the next synchronization, from the seconds of a step and of a synchronization."""
    wanted = max(SYNC_SECONDS, sync / SYNC_SHARE, min(FEWEST_STEPS * step, SOON_SECONDS))
    return max(1, min(MOST_STEPS, int(min(wanted, SELDOM_SECONDS) / max(step, 1e-6))))
