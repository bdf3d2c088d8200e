"""How many threads each of several workers on one host computes with."""

import os


def threads_per_worker(workers: int) -> int | None:
    """Cores shared out evenly; None if the user has set threads."""
    if "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // workers)
