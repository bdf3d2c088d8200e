"""What a run survives, and how it shares the cores of a host. Imports nothing heavy: commands look here first."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class LossPolicy:
    """What may be lost."""

    restarts: int = 3
    """Of each worker."""
    least: int = 1
    """Fewer living workers end the run."""


def threads_per_worker(workers: int) -> int | None:
    """Cores shared out evenly; None if the user has set threads."""
    if "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ:
        return None
    return max(1, own_cores() // workers)


def own_cores() -> int:
    """How many cores this process may use."""
    # taskset or a container may allow fewer cores than the host has
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
