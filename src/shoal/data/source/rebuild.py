"""A `DataLoader` like the user's, reading something else."""

from typing import Any

from torch import Generator
from torch.utils.data import DataLoader


def like(loader: DataLoader[Any], dataset: Any, *, generator: Generator, **changes: Any) -> DataLoader[Any]:
    """A loader over `dataset` with the processes, memory and time-out of `loader`.

    Its `in_order` is not carried over: steps are counted by their order, so batches keep it.
    """
    carried: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "pin_memory_device": loader.pin_memory_device,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    return DataLoader(dataset, generator=generator, **(carried | changes))
