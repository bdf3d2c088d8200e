"""Which run may send on a link that several share: the one that has the least left goes first.

    shorter run sends       this one stands back: 1/16 of the rate, so that nothing takes more than 16 times as long
    shorter run computes    this one sends; no more is under way than fits the time the other has been silent
    no shorter run          this one sends as if it were alone

Shortest remaining first gives the lowest mean completion of jobs on one link (Schrage 1968). Mai et al., "Optimizing
Network Performance in Distributed Machine Learning", HotCloud 2015 (MLNet). It has no clock and no socket of its own.
Only chunks of collectives stand back: acknowledgements, heartbeats and messages leave as ever. Do not use it for runs
that must all advance: the longest waits for the end of all others.
"""

import os
import re
from collections.abc import Callable
from typing import Protocol

from shoal.core.errors import UsageError
from shoal.hosts.job_board import JobEntry
from shoal.transport.messages import CHUNK

PRIORITY_VARIABLE = "SHOAL_PRIORITY"
_WORDS = re.compile(r"shortest(?::([1-9]\d{0,11}))?", re.ASCII)
SHARE = 16
"""A run that stands back keeps one part in so many of the rate. Its deadlines are that many times as long."""
UNMEASURED = 125_000.0
"""Bytes a second that are assumed of a link before its rate is measured."""
POLL = 0.005
"""Seconds between two looks at the others while this run stands back."""


def priority_from_environment() -> int | None:
    """Return the steps that $SHOAL_PRIORITY declares, 0 if it leaves them to the script; None if there is none."""
    text = os.environ.get(PRIORITY_VARIABLE, "")
    return read_priority(text) if text else None


def read_priority(text: str) -> int:
    """Parse `shortest` or `shortest:STEPS`; 0 steps mean that the script's loader and epochs tell."""
    found = _WORDS.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--priority (${PRIORITY_VARIABLE}): {text!r} is no priority; write 'shortest', or 'shortest:2000' for a "
            "script of 2000 steps that joins no loader"
        )
    return int(found[1] or 0)


class OtherJobs(Protocol):
    """Where runs tell each other what they have left."""

    def write(self, left: float, is_busy: bool) -> None: ...

    def read(self) -> list[JobEntry]: ...

    def close(self) -> None: ...


class JobPriority:
    """Of one process; used by its communication thread."""

    def __init__(self, name: str, others: OtherJobs, count_left: Callable[[], float]) -> None:
        """`count_left` returns the bytes this run has to send until it ends."""
        self.name, self.others, self._count_left = name, others, count_left
        self.seconds: dict[str, float] = {}
        """How long this run stood back, by the run it stood back for."""
        self.stands_back_for = ""
        """The run that is sending before this one; empty if none is."""
        self._shorter_exists = self._is_sending = False
        self._silent_since = self._looked = self._next = -float("inf")

    def look(self, now: float, is_waiting: bool, is_busy: bool) -> None:
        """Tell the others how this run stands, and read how they do."""
        if self.stands_back_for:
            before = self.seconds.get(self.stands_back_for, 0.0)
            self.seconds[self.stands_back_for] = before + max(0.0, now - self._looked)
        left = self._count_left()
        self.others.write(left, is_busy)
        shorter = sorted((job.left, job.name, job.is_busy) for job in self.others.read())
        shorter = [job for job in shorter if job[:2] < (left, self.name)]
        sending = next((name for _, name, busy in shorter if busy), None)
        if sending is not None or (shorter and not self._shorter_exists):
            self._silent_since = now
        self._shorter_exists, self._is_sending, self._looked = bool(shorter), sending is not None, now
        self.stands_back_for = sending or "" if is_waiting else ""

    def may_send(self, now: float, under_way: int, rate: float | None) -> bool:
        """Return whether a chunk may leave on a link of this rate with so many bytes under way."""
        if self._is_sending:
            return now >= self._next
        if not self._shorter_exists:
            return True
        # the shorter run may come back at any time, and would then wait for what is under way
        return under_way < CHUNK or under_way < (rate or UNMEASURED) * (now - self._silent_since)

    def sent(self, now: float, size: int, rate: float | None) -> None:
        """Note a chunk that has left."""
        if self._is_sending:
            self._next = max(now, self._next) + SHARE * size / (rate or UNMEASURED)
