"""When workers meet: about twice a second, but seldom enough to cost little, and often enough to stop when asked.

A meeting's seconds say little where processors are short: its messages are a quarter of those of a step in five
buckets, whoever waits for them. So a few steps lie between two meetings, unless they take so long that somebody who
stops the run would wait.
"""

import msgspec

MEET_SECONDS, SELDOM_SECONDS = 0.5, 10.0
MEET_SHARE = 0.005
"""Of the time, at most for meetings."""
SOON_SECONDS = 3.0
"""Up to which the fewest steps count, and not the seconds alone."""
FEWEST_STEPS, MOST_STEPS = 4, 100
"""Steps from one meeting to the next; the latter also from one comparison of parameters to the next."""


class Agenda(msgspec.Struct, frozen=True):
    """What a newcomer is told."""

    next: int = 0
    """The step of the next meeting."""
    compared: int = 0
    saved: int = 0
    """Steps of the last comparison and the last checkpoint."""
    meetings: int = 0
    """How many there were."""


def steps_between(step: float, meeting: float) -> int:
    """Steps until the next meeting, from the seconds of a step and of a meeting."""
    wanted = max(MEET_SECONDS, meeting / MEET_SHARE, min(FEWEST_STEPS * step, SOON_SECONDS))
    return max(1, min(MOST_STEPS, int(min(wanted, SELDOM_SECONDS) / max(step, 1e-6))))
