"""The base of all events, and what takes them.

Every part of the package may emit; only `watch`, `bench` and `cli` read.
"""

from typing import Protocol

import msgspec


class RunEvent(msgspec.Struct, frozen=True, tag_field="event", kw_only=True):
    """Base of all events; the class name is the tag on disk."""

    at: float
    """Wall-clock time, seconds since 1970; for people. Durations never come from it."""


class EventSink(Protocol):
    """Takes events; must be cheap, must not raise."""

    # Called in the training thread, in every step.
    def emit(self, event: RunEvent) -> None: ...


class NullSink:
    """The sink that forgets."""

    def emit(self, event: RunEvent) -> None:
        pass
