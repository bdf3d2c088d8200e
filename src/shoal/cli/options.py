"""The options of `shoal run`, as one value."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli.listen import NOT_LISTENING, ListenOptions

if TYPE_CHECKING:
    from shoal.launch.engines.base import LaunchEngine

PLAN, AUTO = "allreduce, every(1)", "auto"
"""The defaults of a run."""


@dataclass(frozen=True)
class RunOptions:
    """The options as given; None if the user gave none."""

    script: str | None
    arguments: tuple[str, ...] = ()
    workers: int | None = None
    plan: str | None = None
    name: str | None = None
    runs: str | None = None
    seed: int | None = None
    lab: str | None = None
    checkpoint: str | None = None
    resume: str | None = None
    survive: tuple[int, int] = (3, 1)
    """Restarts of a lost worker, and the least number of living ones."""
    wanted: ListenOptions = NOT_LISTENING
    """Which machines may join."""
    share: str | None = None
    """How much of every batch each worker computes."""
    data_servers: str | None = None
    """How many processes prepare batches, or where some do."""
    spare: int = 0
    """Slots for workers that are added later."""
    tunes: bool = False
    """Whether workers are added while throughput rises."""
    engine: "LaunchEngine | None" = None
    """The engine that starts the other machines, on the first of them."""
