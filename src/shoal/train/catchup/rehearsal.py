"""A newcomer's rehearsal: it asks to be let in only when taking over a state takes it little time.

    take over a state of its own: write, read, load, compare ── quick: ask ── slow: again in a while

Others stand still while a newcomer takes over the state, or what is left of it after a stream. A machine that is short
of time can make seconds of what takes milliseconds elsewhere. What the link takes is not rehearsed: it would cost the
others as much as it costs them when the newcomer enters.
"""

from collections.abc import Callable

from shoal.core.clock import now
from shoal.train.catchup.update import bulk, proof
from shoal.train.checkpoint.shard import parse, pieces
from shoal.train.checkpoint.snapshot import common, put_common
from shoal.train.joined import JoinedModels

QUICK, RATE = 1.0, 100e6
"""Seconds, and bytes per second, in which a state is taken over quickly enough."""
PAUSE = 2.0
"""Seconds between two tries."""
FAIR = 10.0
"""A newcomer stays out at most so many times as long as it would keep the others waiting: a machine that is always slow
enters, too, and costs the others a tenth of that time."""


class EntryRehearsal:
    """Of a newcomer that has joined once."""

    def __init__(self, joined: JoinedModels, clock: Callable[[], float] = now) -> None:
        self.joined, self._clock = joined, clock
        self._began = self._tried = -1.0
        self.seconds = 0.0
        """What the last try took."""

    def is_ready(self) -> bool:
        """Return whether this worker may ask to be let in; tries again once a pause is over."""
        began = self._clock()
        if self._tried >= 0.0 and began - self._tried < PAUSE:
            return False
        first = self._began < 0.0
        self._began = began if first else self._began
        size = self._take_over()
        self._tried = self._clock()
        self.seconds = self._tried - began
        if self.seconds <= QUICK + size / RATE or began - self._began >= FAIR * self.seconds:
            return True
        if first:
            self.joined.progress.warn(
                f"this worker is slow: to take over a state of {size} bytes took {self.seconds:.1f} s; it tries again "
                f"every {PAUSE:.0f} s, and enters when it is quicker, or in {FAIR * self.seconds:.0f} s at the latest"
            )
        return False

    def _take_over(self) -> int:
        """Do with a state of this worker's own what will be done with the donor's; return its bytes."""
        tensors, texts = common([self.joined])
        data = b"".join(pieces(tensors, texts))
        put_common(self.joined, 0, *parse(data, "a rehearsed state"))
        proof(bulk([self.joined]))
        return len(data)
