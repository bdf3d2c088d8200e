"""The core: life cycle and metrics of whatever is served, and the way of a request to its model.

It knows loaders and servables by their contracts alone. Requests run on one event loop; models compute in threads;
sources are polled and versions loaded in a thread of their own.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shoal.core import clock
from shoal.core.errors import ShoalError, UsageError
from shoal.serve.batcher import LAST, NORMAL, BatchSettings, RequestBatcher
from shoal.serve.cache import ResultCache, input_digest
from shoal.serve.control import NOTHING, ModelControl, SharedControl
from shoal.serve.errors import BodyTooLarge, DeadlinePassed, ModelMissing, PredictFailed, RequestError
from shoal.serve.manager import ServableManager
from shoal.serve.metrics import VersionMetrics
from shoal.serve.model import CompositeModel
from shoal.serve.router import RequestRoute, TrafficSettings, VersionRouter
from shoal.serve.servable import Servable, is_batchable
from shoal.serve.shadow import ShadowCopies
from shoal.serve.shared_metrics import SharedMetrics
from shoal.serve.sizing import BatchSizer, FixedSizer, SizingPolicy
from shoal.serve.slots import ComputeSlots
from shoal.serve.source import VersionSource
from shoal.serve.stream import VersionStream
from shoal.serve.tensors import Tensors, TensorSpec, check_inputs, rows_of
from shoal.serve.version import ServableVersion

DRAIN_SECONDS = 10.0
"""How long a server that ends waits for the batches it computes."""


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


@dataclass(frozen=True)
class ModelAnswer:
    """What a model answered, and which version of it."""

    name: str
    number: int
    outputs: Tensors


@dataclass(frozen=True)
class RequestTerms:
    """Until when a request wants its answer, and how urgent it is."""

    deadline: float
    """A moment on the event loop's clock."""
    level: int = NORMAL


@dataclass
class ServedModel:
    """One name of the server: where its versions come from, and their order."""

    source: VersionSource
    stream: VersionStream
    loaders: Mapping[int, Any] = field(default_factory=dict)
    problem: str = ""
    """What was wrong with the last look at the source."""


class ServingCore:
    """Everything that is served by one process."""

    def __init__(
        self,
        sources: Sequence[VersionSource],
        settings: CoreSettings | None = None,
        *,
        composites: Sequence[CompositeModel] = (),
        budget: int | None = None,
        shared: Path | None = None,
    ) -> None:
        """`shared` is a folder that the processes of one server have in common."""
        self.control, self.shared_metrics = SharedControl(shared), SharedMetrics(shared and shared / "metrics")
        self.on_change: Callable[[ServableVersion], None] | None = None
        """Is told of every change of a version's state, in whatever thread makes it."""
        self.on_decision: Callable[[str], None] | None = None
        """Is told of what the stages of a new version led to, in the thread that polls."""
        self.settings = settings or CoreSettings()
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")
        self.manager = ServableManager(budget, self._changed, self._loading.submit)
        keep = max(self.settings.keep, self.settings.traffic.least_kept)
        self.models = {each.name: ServedModel(each, VersionStream(each.name, keep)) for each in sources}
        self.router = VersionRouter(self.settings.traffic, self.control)
        self.cache = ResultCache(self.settings.cache)
        self._copies = ShadowCopies()
        self.composites = {each.name: each for each in composites}
        self._check_names(len(sources) + len(composites))
        self.metrics: dict[tuple[str, int], VersionMetrics] = {}
        self._batchers: dict[tuple[str, int], RequestBatcher] = {}
        threads = max(1, len(sources)) * self.settings.batch.concurrency
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="predict")
        self._slots = ComputeSlots(self.settings.slots or threads)

    def _check_names(self, expected: int) -> None:
        if len(self.models | self.composites) < expected:
            raise UsageError("two models have the same name; give each its own as NAME=MODEL")
        for each in self.composites.values():
            for part in each.parts:
                if part not in self.models:
                    raise UsageError(f"{each.name!r} consists of {part!r}, which is not served; add {part}=MODEL")

    # life cycle

    def poll(self) -> None:
        """Look at every source once and load what is new; problems are kept, not raised."""
        self.shared_metrics.exchange(self.metrics)
        decided = self.control.read()
        for name, model in self.models.items():
            model.stream.pin(decided.get(name, NOTHING).pinned)
            try:
                model.loaders = model.source.poll()
                model.problem = ""
            except (ShoalError, OSError) as error:
                model.problem = str(error)
                continue
            model.stream.update(model.loaders)
            self._refresh_routes(name, model.stream)
            self.manager.apply(model.stream, model.loaders)
            self._refresh_routes(name, model.stream)

    def _refresh_routes(self, name: str, stream: VersionStream) -> None:
        """Before loading, so that it is known what to load; and after it, with what is there then."""
        versions = self.manager.versions(name)
        available = {each.number: True for each in versions if each.state == "available"}
        broken = {each.number: each.error for each in versions if each.state == "failed"}
        said = self.router.refresh(stream, available, self.versions_metrics(name), broken)
        if said and self.on_decision is not None:
            self.on_decision(f"{name}: {said}")

    async def poll_for_ever(self, period: float) -> None:
        """Poll every `period` seconds, until it is cancelled."""
        while True:
            await asyncio.sleep(period)
            await self.poll_once()

    async def poll_once(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._loading, self.poll)

    async def roll_back(self, name: str, to: int | None = None) -> int:
        """Serve an earlier version of a model, until `follow_newest`."""
        number = self._model(name).stream.earlier(to)
        self.control.change(name, lambda held: replace(held, pinned=number, reason="rolled back by request"))
        await self.poll_once()
        return number

    async def follow_newest(self, name: str) -> None:
        self._model(name)

        def follow(held: ModelControl) -> ModelControl:
            """Versions that a rule refused may be tried again."""
            again = replace(held.rollout, rejected=())
            return replace(held, pinned=None, rollout=again, reason="follows the newest by request")

        self.control.change(name, follow)
        await self.poll_once()

    def _model(self, name: str) -> ServedModel:
        if name not in self.models:
            raise ModelMissing(f"no model {name[:80]!r} here; there is {', '.join(self.names())}")
        return self.models[name]

    async def close(self) -> None:
        """Let what is being computed finish; nothing new comes."""
        await self._copies.drain(DRAIN_SECONDS)
        await asyncio.gather(*(each.drain(DRAIN_SECONDS) for each in list(self._batchers.values())))
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loading.shutdown(wait=False, cancel_futures=True)

    def _changed(self, version: ServableVersion) -> None:
        if version.state == "draining":  # what it computes goes on; a version of this number gets a new one
            self._batchers.pop((version.name, version.number), None)
        if self.on_change is not None:
            self.on_change(version)

    # what there is

    def names(self) -> list[str]:
        return [*self.models, *self.composites]

    def is_ready(self, name: str | None = None, number: int | None = None) -> bool:
        """Whether a model, or every model, can be asked."""
        names = self.names() if name is None else [name]
        try:
            return all(bool(self._parts_ready(each, number)) for each in names)
        except ModelMissing:
            return False

    def _parts_ready(self, name: str, number: int | None) -> bool:
        parts = self.composites[name].parts if name in self.composites else (name,)
        for part in parts:
            with self.manager.use(part, number):
                pass
        return True

    def specs(self, name: str, number: int | None = None) -> tuple[int, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Number, inputs and outputs of a version, or of a model as a whole."""
        if (composite := self.composites.get(name)) is not None:
            first, last = self.specs(composite.parts[0]), self.specs(composite.parts[-1])
            return 1, first[1], last[2]
        with self.manager.use(name, number) as version:
            assert version.servable is not None
            return version.number, version.servable.inputs, version.servable.outputs

    # requests

    async def infer(
        self,
        name: str,
        inputs: Tensors,
        *,
        number: int | None = None,
        timeout: float | None = None,
        key: str = "",
        level: int = NORMAL,
    ) -> ModelAnswer:
        """Ask a model. RequestError says why it did not answer. Requests of one `key` go to the same version."""
        began, terms = clock.now(), self._terms(timeout, level)
        if (composite := self.composites.get(name)) is not None:
            return await self._ask_composite(composite, inputs, began, terms)
        route = self.router.route(name, key) if number is None else RequestRoute(number)
        found = await self._answer(self._acquire(name, number, route), inputs, began, terms)
        if route.shadow is not None and route.shadow != found.number:
            self._copy(name, route.shadow, inputs, found.outputs)
        return found

    def _terms(self, timeout: float | None, level: int) -> RequestTerms:
        seconds = self.settings.timeout if timeout is None else timeout
        return RequestTerms(asyncio.get_running_loop().time() + seconds, level)

    def _acquire(self, name: str, number: int | None, route: RequestRoute) -> ServableVersion:
        try:
            return self.manager.acquire(name, route.number)
        except ModelMissing:
            if number is not None or route.number is None:
                raise
            return self.manager.acquire(name)  # it was let go since the last poll

    async def _answer(
        self, version: ServableVersion, inputs: Tensors, began: float, terms: RequestTerms
    ) -> ModelAnswer:
        """Of one version, from the cache or from the model; the version is released."""
        metrics = self.metrics_of(version.name, version.number)
        status = 499  # the client is gone, unless an answer says otherwise
        try:
            outputs = await self._find_or_ask(version, inputs, terms, metrics)
            status = 200
            return ModelAnswer(version.name, version.number, outputs)
        except RequestError as error:
            status = error.status
            raise
        finally:
            metrics.request_done(status, clock.now() - began)
            self.manager.release(version)

    async def _find_or_ask(
        self, version: ServableVersion, inputs: Tensors, terms: RequestTerms, metrics: VersionMetrics
    ) -> Tensors:
        if not self.cache.limit:
            return await self._ask(version, inputs, terms, metrics)
        key = (version.serial, input_digest(inputs))
        if (known := self.cache.find(key)) is not None:
            metrics.traffic.cache_hits += 1
            return known
        metrics.traffic.cache_misses += 1
        outputs = await self._ask(version, inputs, terms, metrics)
        self.cache.put(key, outputs)
        return outputs

    def _copy(self, name: str, number: int, inputs: Tensors, answer: Tensors) -> None:
        """Ask the version that is tried the same, for nobody."""
        counts = self.metrics_of(name, number).traffic

        async def ask() -> Tensors:
            terms = self._terms(None, LAST)
            return (await self._answer(self.manager.acquire(name, number), inputs, clock.now(), terms)).outputs

        def count(agreed: int, compared: int) -> None:
            counts.agreed += agreed
            counts.compared += compared

        self._copies.send(ask, answer, count)

    def reward(self, name: str, reward: float, *, key: str = "", number: int | None = None) -> int:
        """Count feedback about an answer: of the request with this id, or of a version; returns the version."""
        if name not in self.models:
            raise ModelMissing(f"no model {name[:80]!r} here; there is {', '.join(self.models)}")
        if number is not None and number not in self.models[name].stream.numbers:
            raise ModelMissing(f"{name!r} has no version {number}")
        number, loss = self.router.loss(name, reward, key=key, number=number)
        self.metrics_of(name, number).rewarded(reward, loss)
        return number

    async def _ask(
        self, version: ServableVersion, inputs: Tensors, terms: RequestTerms, metrics: VersionMetrics
    ) -> Tensors:
        servable = version.servable
        assert servable is not None  # it is kept while it is in use
        check_inputs(servable.inputs, inputs)
        rows = rows_of(servable.inputs, inputs)
        if rows > self.settings.most_rows:
            raise BodyTooLarge(f"the request has {rows} samples; {self.settings.most_rows} is the most; send several")
        if rows < 1:
            raise RequestError("the request has no sample; send one or more")
        return await self._batcher(version, servable, metrics).submit(inputs, rows, terms.deadline, terms.level)

    def _batcher(self, version: ServableVersion, servable: Servable, metrics: VersionMetrics) -> RequestBatcher:
        key = (version.name, version.number)
        if (found := self._batchers.get(key)) is None:
            execute, sizer = self._executor(servable), self._sizer(servable)
            found = RequestBatcher(execute, sizer, self.settings.batch, metrics, clock.now, self._slots)
            self._batchers[key] = found
        return found

    def _executor(self, servable: Servable) -> Any:
        async def execute(inputs: Tensors) -> Tensors:
            return await asyncio.get_running_loop().run_in_executor(self._threads, servable.predict, inputs)

        return execute

    def _sizer(self, servable: Servable) -> SizingPolicy:
        if not self.settings.batching or not is_batchable(servable):
            return FixedSizer(1)
        return BatchSizer(self.settings.goal, self.settings.most_rows)

    async def _ask_composite(
        self, composite: CompositeModel, inputs: Tensors, began: float, terms: RequestTerms
    ) -> ModelAnswer:
        loop_time = asyncio.get_running_loop().time
        metrics, status = self.metrics_of(composite.name, 1), 499

        async def ask(part: str, given: Tensors) -> Tensors:
            if (left := terms.deadline - loop_time()) <= 0:
                raise DeadlinePassed(f"the request's time was over before {part!r} was asked")
            return (await self.infer(part, given, timeout=left, level=terms.level)).outputs

        try:
            outputs = await composite.predict(inputs, ask, lambda part: self.specs(part)[1])
            status = 200
            return ModelAnswer(composite.name, 1, outputs)
        except RequestError as error:
            status = error.status
            raise
        except (ValueError, KeyError) as error:  # outputs of the parts that cannot be averaged
            status = 500
            raise PredictFailed(f"the parts of {composite.name!r} do not fit together: {error}") from None
        finally:
            metrics.request_done(status, clock.now() - began)

    def metrics_of(self, name: str, number: int) -> VersionMetrics:
        return self.metrics.setdefault((name, number), VersionMetrics())

    def total_metrics(self) -> dict[tuple[str, int], VersionMetrics]:
        """Counts of all processes of the server."""
        return self.shared_metrics.total(self.metrics)

    def versions_metrics(self, name: str) -> dict[int, VersionMetrics]:
        """Counts of all processes, of one model by version."""
        return {number: each for (model, number), each in self.total_metrics().items() if model == name}

    def batch_limits(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Of each version that was asked: the present limit of a batch, and the samples that wait."""
        return {key: (each.sizer.rows, each.queued) for key, each in list(self._batchers.items())}
