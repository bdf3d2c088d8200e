"""A worker's side of the data servers: its loaders' batches come from them, and its record says what they did."""

import time
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from shoal.core.events import BatchesFetched
from shoal.data.source.choose import has_indices
from shoal.data.source.mapped import PreparesBatches
from shoal.data.tier.fetching import AHEAD, BatchFetcher, FetchedLoader, refuse_servers
from shoal.data.tier.preparing import BatchPreparer
from shoal.data.tier.server_links import SocketLinks
from shoal.groups.base import WorkerGroup
from shoal.launch.data_seats import DataTierAddress
from shoal.train.progress import StepProgress


class DataTier:
    """Of one worker."""

    def __init__(self, fetcher: BatchFetcher, progress: StepProgress, number: int) -> None:
        self._fetcher, self._progress, self._number = fetcher, progress, number

    def preparing(self, loader: Any, number: int) -> PreparesBatches:
        """Return what prepares the batches of a joined loader; UsageError if its samples have no indices."""
        if not has_indices(loader):
            raise refuse_servers(_describe(loader))
        preparer = BatchPreparer(loader, self._number)
        return partial(self._fetcher.fetch, FetchedLoader(number, preparer, loader.prefetch_factor or AHEAD))

    def told(self) -> BatchesFetched:
        """What the servers did so far."""
        made = self._fetcher.totals
        return BatchesFetched(
            at=time.time(),
            step=self._progress.step,
            batches=list(made.batches),
            bytes=made.bytes,
            local=made.local,
            waited=round(made.waited, 6),
            overdue=made.overdue,
            lost=made.lost,
        )


def connect_data_servers(address: DataTierAddress, progress: StepProgress, group: WorkerGroup) -> DataTier | None:
    """Return this worker's connections to the data servers of its run; None if it has none."""
    if not address.servers:
        return None
    fetcher = BatchFetcher(SocketLinks(address.servers, address.keys), progress.warn, lambda: group.size)
    tier = DataTier(fetcher, progress, len(address.servers) + group.slot)
    progress.reports.append(tier.told)
    return tier


def _describe(loader: Any) -> str:
    if not isinstance(loader, DataLoader):
        return f"type {type(loader).__name__}"
    if type(loader).__iter__ is not DataLoader.__iter__:
        return f"class {type(loader).__name__}, which iterates in a way of its own,"
    return f"the iterable dataset {type(loader.dataset).__name__}"
