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

from shoal.core.errors import ShoalError, UsageError
from shoal.serve.asking import ModelAnswer, ModelAsker
from shoal.serve.batcher import NORMAL
from shoal.serve.batchers import VersionBatchers
from shoal.serve.control import NOTHING, ModelControl, SharedControl
from shoal.serve.core_settings import CoreSettings
from shoal.serve.errors import ModelMissing
from shoal.serve.manager import ServableManager
from shoal.serve.metrics import VersionMetrics
from shoal.serve.model import CompositeModel
from shoal.serve.router import VersionRouter
from shoal.serve.shared_metrics import SharedMetrics
from shoal.serve.source import VersionSource
from shoal.serve.stream import VersionStream
from shoal.serve.tensors import Tensors, TensorSpec
from shoal.serve.version import ServableVersion


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
        # One thread, because `ServableManager.apply` must not run twice at a time.
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="load")
        self.manager = ServableManager(budget, self._changed, self._loading.submit)
        keep = max(self.settings.keep, self.settings.traffic.least_kept)
        self.models = {each.name: ServedModel(each, VersionStream(each.name, keep)) for each in sources}
        self.router = VersionRouter(self.settings.traffic, self.control)
        self.composites = {each.name: each for each in composites}
        self._check_names(len(sources) + len(composites))
        self.metrics: dict[tuple[str, int], VersionMetrics] = {}
        self._batchers = VersionBatchers(self.settings, len(sources))
        self.asker = ModelAsker(
            self.manager, self.router, self._batchers, self.composites, self.metrics_of, self.settings.timeout
        )

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
        # First, so that routes are decided by the counts of all processes.
        self.shared_metrics.exchange(self.metrics)
        decided = self.control.read()
        for name, model in self.models.items():
            # Every process reads what one of them was asked to do, so all roll back within a poll.
            model.stream.pin(decided.get(name, NOTHING).pinned)
            try:
                model.loaders = model.source.poll()
                model.problem = ""
            except (ShoalError, OSError) as error:
                # Not raised: what is loaded goes on while its source cannot be read.
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
        # Requests first: their batchers must still run.
        await self.asker.drain()
        await self._batchers.close()
        # A load may take minutes, and its result is not needed any more.
        self._loading.shutdown(wait=False, cancel_futures=True)

    def _changed(self, version: ServableVersion) -> None:
        if version.state == "draining":  # what it computes goes on; a version of this number gets a new one
            self._batchers.forget(version.name, version.number)
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
            # Raises ModelMissing where the part cannot be asked.
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
        return await self.asker.infer(name, inputs, number=number, timeout=timeout, key=key, level=level)

    def reward(self, name: str, reward: float, *, key: str = "", number: int | None = None) -> int:
        """Count feedback about an answer: of the request with this id, or of a version; returns the version."""
        if name not in self.models:
            raise ModelMissing(f"no model {name[:80]!r} here; there is {', '.join(self.models)}")
        if number is not None and number not in self.models[name].stream.numbers:
            raise ModelMissing(f"{name!r} has no version {number}")
        number, loss = self.router.loss(name, reward, key=key, number=number)
        self.metrics_of(name, number).rewarded(reward, loss)
        return number

    # counts

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
        return self._batchers.limits()
