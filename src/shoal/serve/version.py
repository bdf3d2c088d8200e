"""One version of a servable: its number, its life from discovery to removal, and who uses it at the moment.

new → loading → available → draining → ended
         └→ failed             (draining: finishes what was begun, gets nothing new)
"""

from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from shoal.serve.loader import ServableLoader
from shoal.serve.servable import Servable

VersionState = Literal["new", "loading", "available", "draining", "ended", "failed"]
_NEXT: dict[VersionState, tuple[VersionState, ...]] = {
    "new": ("loading", "failed"),
    "loading": ("available", "failed"),
    "available": ("draining",),
    "draining": ("ended",),
    # A version that was let go may be wanted again: a roll back, or an alias that moves back.
    "ended": ("loading",),
    "failed": ("loading",),
}


@dataclass(eq=False)
class ServableVersion:
    """Version `number` of `name`; changed by the manager alone, under its lock."""

    name: str
    number: int
    loader: ServableLoader
    state: VersionState = "new"
    error: str = ""
    """Why it is not served, if it failed."""
    servable: Servable | None = None
    users: int = 0
    """Requests that are being answered by it."""
    failures: int = 0
    """How often loading it has failed in turn."""
    pause: int = 0
    """Polls to wait before it is tried again."""
    memory: int = 0
    """Bytes it was estimated to take, while it is loaded."""
    serial: int = field(default_factory=count(1).__next__)
    """Another one for each load in this process: the same number may come back with other weights."""

    def enter(self, state: VersionState) -> None:
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"{self.ref} cannot go from {self.state} to {state}")
        self.state = state

    @property
    def ref(self) -> str:
        return f"{self.name}:{self.number}"
