"""When a coordinator that failed is started again: at once the first time, then ever later, while the cause lasts.

A coordinator whose log cannot grow (a full disk) ends, for it may say nothing that is not durable. Its members train
on meanwhile, as long as their lease and their membership last. Starting it again at every tick would help nobody.
"""

from shoal.core.clock import now

SHORTEST, LONGEST = 1.0, 16.0
"""Seconds before the second start, and the most between two later ones; each is twice the one before."""
CALM = 30.0
"""Seconds a coordinator has to serve for the next failure to count as a new one."""


class CoordinatorOutage:
    """Of one run; `note` is the line the user has not been told yet, empty if there is none."""

    def __init__(self) -> None:
        self.note = ""
        self._delay = 0.0
        self._due = self._started = now()
        self._told = False

    def failed(self, reason: str, log: object) -> None:
        """It ended by itself, or could not be started, for this reason."""
        calm = now() - self._started >= CALM
        self._delay = 0.0 if calm else min(LONGEST, max(SHORTEST, 2 * self._delay))
        self._due = now() + self._delay
        if not self._told or calm:
            self._told = True
            self.note = (
                f"the coordinator cannot write {log}: {reason}; it tries again until it can, and the workers train on "
                "as long as none comes or goes"
            )

    @property
    def over(self) -> bool:
        """Whether it is time to start it again; asked before each start."""
        if now() < self._due:
            return False
        self._started = now()
        return True
