"""What holds for every model of a server."""

from dataclasses import dataclass, field

from shoal.serve.batcher import BatchSettings
from shoal.serve.router import TrafficSettings


@dataclass(frozen=True)
class CoreSettings:
    """What holds for every model of a server."""

    batch: BatchSettings = field(default_factory=BatchSettings)
    goal: float = 0.1
    """Seconds from a request to its answer that the batcher aims for."""
    most_rows: int = 1024
    """Samples of one request, and of one batch."""
    batching: bool = True
    slots: int | None = None
    """Batches of all models at the same time: the cores of this process; None: as many as the models may compute."""
    timeout: float = 30.0
    """Seconds of a request that names none."""
    keep: int = 1
    """Versions of a model that are served beside each other."""
    cache: int = 0
    """Bytes of answers that are kept for equal requests; 0: none."""
    traffic: TrafficSettings = field(default_factory=TrafficSettings)
