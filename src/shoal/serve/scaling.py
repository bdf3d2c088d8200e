"""How many processes answer: as many as the load needs, not as many as its peak (Swayam, Middleware'17).

Gujarati et al.: "Swayam: Distributed Autoscaling to Meet SLAs of Machine Learning Inference Services with Resource
Efficiency". Two of its ideas are here. The rate of arrivals is estimated over a window, and a jump of it counts as soon
as it cannot be chance; and the number of processes is the smallest for which a queueing model says that the share
`level` of the requests is answered within `goal`. Processes that are not needed are kept for `linger` seconds, because
bursts come in groups. No clock is read: the caller says what time it is.

Not for loads that are steady, where a fixed number costs less to think about, nor for a goal below the time a process
takes to start, which only processes that are there already can meet.
"""

from collections import deque
from dataclasses import dataclass, field
from math import ceil, exp, sqrt

SIGMAS = 1.0
"""By how many standard deviations a count is taken down before it counts as a burst."""


@dataclass(frozen=True)
class ScalingGoal:
    """What the processes have to achieve."""

    least: int
    most: int
    goal: float = 0.1
    """Seconds from a request to its answer."""
    level: float = 0.99
    """The share of requests that the goal holds for."""
    linger: float = 2.0
    """Seconds that a process is kept without need."""
    window: float = 2.0
    """Seconds over which arrivals are counted; a quarter of it should be about as long as a process takes to start."""


def waits_longer(rate: float, service: float, servers: int, seconds: float) -> float:
    """The share of requests that wait longer than `seconds` for one of `servers` (Erlang C, M/M/c)."""
    offered = rate * service
    # The queue grows without end, so every request waits too long.
    if offered >= servers:
        return 1.0
    blocked = 1.0  # Erlang B, by its recursion
    for number in range(1, servers + 1):
        blocked = offered * blocked / (number + offered * blocked)
    delayed = blocked / (1.0 - offered / servers * (1.0 - blocked))
    return delayed * exp(-(servers - offered) * max(seconds, 0.0) / service)


def servers_needed(rate: float, service: float, goal: ScalingGoal) -> int:
    """The smallest number that meets the goal at this rate of arrivals, within the bounds."""
    if rate <= 0.0 or service <= 0.0:
        return goal.least if rate <= 0.0 else max(1, goal.least)
    for servers in range(max(1, goal.least), goal.most):
        # A request may wait for what its own computing leaves of the goal.
        if waits_longer(rate, service, servers, goal.goal - service) <= 1.0 - goal.level:
            return servers
    return goal.most


@dataclass
class SwayamScaler:
    """The number of processes wanted now."""

    goal: ScalingGoal
    _arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    _needed: deque[tuple[float, int]] = field(default_factory=deque)

    def observe(self, now: float, arrived: int) -> None:
        """Count requests that came since the last call."""
        # Zeros too: a look without requests moves the window on.
        self._arrivals.append((now, arrived))
        while self._arrivals and self._arrivals[0][0] <= now - self.goal.window:
            self._arrivals.popleft()

    def keep(self, now: float, count: int) -> None:
        """Keep this many for `linger` seconds, whatever the load."""
        self._needed.append((now, count))

    def rate(self, now: float) -> float:
        """Requests a second: over the window, or more if the last quarter of it had more than chance explains.

        A short window alone follows every fluctuation, and the largest of them would be provided for all the time; a
        long one alone sees a burst when the queue is there already.
        """
        short = self.goal.window / 4
        recent = sum(count for at, count in self._arrivals if at > now - short)
        surely = max(0.0, recent - SIGMAS * sqrt(recent))  # counts of a Poisson process spread by their root
        return max(sum(count for _, count in self._arrivals) / self.goal.window, surely / short)

    def wanted(self, now: float, service: float, waiting: int) -> int:
        """Processes for the rate of the moment, for what waits already, and for what was needed a short time ago.

        `service` is the time that a process spends on one request, `waiting` the requests without an answer.
        """
        needed = servers_needed(self.rate(now), service, self.goal)
        if waiting:  # a queue that is there must be emptied within the goal
            needed = max(needed, 1, ceil(waiting * service / self.goal.goal))
        self._needed.append((now, needed))
        while self._needed[0][0] < now - self.goal.linger:
            self._needed.popleft()
        return min(self.goal.most, max(self.goal.least, *(count for _, count in self._needed)))
