"""Which source fits the loader the user gave, and which loaders cannot be dealt."""

from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe
from torch.utils.data.distributed import DistributedSampler

from shoal.core.errors import UsageError
from shoal.data.source.base import BatchSource, WorkerPlace
from shoal.data.source.batches import IterableSource
from shoal.data.source.mapped import MapDatasetSource, PreparesBatches
from shoal.data.source.streamed import StreamSource


def choose(loader: Any, place: WorkerPlace, prepare: PreparesBatches | None = None) -> BatchSource:
    """The source of `loader`'s batches for the worker at `place`; `prepare`: by data servers, which need indices."""
    if not isinstance(loader, DataLoader):
        return IterableSource(_iterable(loader), place)
    _refuse_dealt_already(loader)
    if type(loader).__iter__ is not DataLoader.__iter__:
        return IterableSource(loader, place)  # a loader with an iteration of its own: only its results can be dealt
    if isinstance(loader.dataset, IterableDataset):
        return StreamSource(loader, place)
    return MapDatasetSource(loader, place, prepare)


def has_indices(loader: Any) -> bool:
    """Whether the samples of a loader's batches have indices that another process could be told."""
    plain = isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__
    return plain and not isinstance(loader.dataset, IterableDataset | IterDataPipe | MapDataPipe)


def _iterable(loader: Any) -> Any:
    if hasattr(loader, "__iter__") or hasattr(loader, "__getitem__"):
        return loader
    raise UsageError(f"a loader of type {type(loader).__name__} cannot be iterated; give a DataLoader")


def _refuse_dealt_already(loader: DataLoader[Any]) -> None:
    samplers = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    if any(isinstance(sampler, DistributedSampler) for sampler in samplers):
        raise UsageError(
            "the loader already deals samples (DistributedSampler); "
            "give a plain sampler or shuffle=True, Shoal deals them itself"
        )
    if isinstance(loader.dataset, IterDataPipe | MapDataPipe):
        raise UsageError(
            f"a data pipe ({type(loader.dataset).__name__}) deals samples by itself; "
            "give a Dataset or an IterableDataset, Shoal deals them itself"
        )
