"""What one worker got from the data servers since the run began."""

from dataclasses import dataclass, field


@dataclass
class FetchTotals:
    """Counted by the training thread."""

    servers: int
    batches: list[int] = field(default_factory=list)
    """By server."""
    bytes: int = 0
    local: int = 0
    """Batches that the worker prepared itself."""
    waited: float = 0.0
    """Seconds in which the training thread waited for a batch, or prepared it."""
    overdue: int = 0
    """How often a server did not answer in time."""
    lost: int = 0
    """How often a connection was lost."""

    def __post_init__(self) -> None:
        self.batches = [0] * self.servers

    @property
    def received(self) -> int:
        return sum(self.batches)

    def count(self, server: int, size: int) -> None:
        self.batches[server] += 1
        self.bytes += size
