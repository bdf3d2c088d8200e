"""The batchers of all versions, and the threads and slots they have in common: from checked inputs to outputs."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from shoal.core import clock
from shoal.serve.batcher import NORMAL, RequestBatcher
from shoal.serve.cache import ResultCache, input_digest
from shoal.serve.core_settings import CoreSettings
from shoal.serve.errors import BodyTooLarge, RequestError
from shoal.serve.metrics import VersionMetrics
from shoal.serve.servable import RemoteServable, Servable, is_batchable
from shoal.serve.sizing import BatchSizer, FixedSizer, SizingPolicy
from shoal.serve.slots import ComputeSlots
from shoal.serve.tensors import Tensors, check_inputs, rows_of
from shoal.serve.version import ServableVersion

DRAIN_SECONDS = 10.0
"""How long a server that ends waits for the batches it computes."""


@dataclass(frozen=True)
class RequestTerms:
    """Until when a request wants its answer, and how urgent it is."""

    deadline: float
    """A moment on the event loop's clock."""
    level: int = NORMAL


class VersionBatchers:
    """Asked on the event loop; versions may be forgotten in any thread."""

    def __init__(self, settings: CoreSettings, models: int) -> None:
        self._settings, self._cache = settings, ResultCache(settings.cache)
        self._batchers: dict[tuple[str, int], RequestBatcher] = {}
        # Enough for all batches that may be computed at once, so that none waits for another model's thread.
        threads = max(1, models) * settings.batch.concurrency
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="predict")
        self._slots = ComputeSlots(settings.slots or threads)

    async def ask(
        self, version: ServableVersion, inputs: Tensors, terms: RequestTerms, metrics: VersionMetrics
    ) -> Tensors:
        """Outputs of one version, from the cache or from the model, which stays loaded meanwhile."""
        if not self._cache.limit:
            return await self._compute(version, inputs, terms, metrics)
        key = (version.serial, input_digest(inputs))
        if (known := self._cache.find(key)) is not None:
            metrics.traffic.cache_hits += 1
            return known
        metrics.traffic.cache_misses += 1
        outputs = await self._compute(version, inputs, terms, metrics)
        self._cache.put(key, outputs)
        return outputs

    async def _compute(
        self, version: ServableVersion, inputs: Tensors, terms: RequestTerms, metrics: VersionMetrics
    ) -> Tensors:
        servable = version.servable
        assert servable is not None  # it is kept while it is in use
        check_inputs(servable.inputs, inputs)
        rows = rows_of(servable.inputs, inputs)
        if rows > self._settings.most_rows:
            raise BodyTooLarge(f"the request has {rows} samples; {self._settings.most_rows} is the most; send several")
        if rows < 1:
            raise RequestError("the request has no sample; send one or more")
        return await self._batcher(version, servable, metrics).submit(inputs, rows, terms.deadline, terms.level)

    def _batcher(self, version: ServableVersion, servable: Servable, metrics: VersionMetrics) -> RequestBatcher:
        key = (version.name, version.number)
        if (found := self._batchers.get(key)) is None:
            sizer = self._sizer(servable)
            if isinstance(servable, RemoteServable):
                # Without slots: a replica's batch takes no core of this process.
                far = _executor_elsewhere(servable)
                # Asked anew for each batch, because replicas come and go.
                width = lambda: servable.width  # noqa: E731
                found = RequestBatcher(far, sizer, self._settings.batch, metrics, clock.now, width=width)
            else:
                near = self._executor(servable)
                found = RequestBatcher(near, sizer, self._settings.batch, metrics, clock.now, self._slots)
            self._batchers[key] = found
        return found

    def _executor(self, servable: Servable) -> Any:
        async def execute(inputs: Tensors) -> Tensors:
            return await asyncio.get_running_loop().run_in_executor(self._threads, servable.predict, inputs)

        return execute

    def _sizer(self, servable: Servable) -> SizingPolicy:
        if not self._settings.batching or not is_batchable(servable):
            # Rows of several requests may not be stacked, so each request is its own batch.
            return FixedSizer(1)
        return BatchSizer(self._settings.goal, self._settings.most_rows)

    def forget(self, name: str, number: int) -> None:
        """Its batches go on; a version of this number that comes later gets a batcher of its own."""
        self._batchers.pop((name, number), None)

    def limits(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Of each version that was asked: the present limit of a batch, and the samples that wait."""
        # A copy of the items, because other threads forget versions meanwhile.
        return {key: (each.sizer.rows, each.queued) for key, each in list(self._batchers.items())}

    async def close(self) -> None:
        """Let what is being computed finish; nothing new comes."""
        await asyncio.gather(*(each.drain(DRAIN_SECONDS) for each in list(self._batchers.values())))
        # Not waited for: `drain` has given them their time.
        self._threads.shutdown(wait=False, cancel_futures=True)


def _executor_elsewhere(servable: RemoteServable) -> Any:
    async def execute(inputs: Tensors) -> Tensors:
        return await asyncio.wrap_future(servable.submit(inputs))

    return execute
