"""What may be lost without ending a run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """What may be lost."""

    restarts: int = 3
    """Of each worker."""
    least: int = 1
    """Fewer living workers end the run."""
