"""The way of a request: which version answers it, whether another one gets a copy, and what is counted.

A model of models asks each of its parts as a client would, within the time that is left.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.core import clock
from shoal.serve.batcher import LAST, NORMAL
from shoal.serve.batchers import DRAIN_SECONDS, RequestTerms, VersionBatchers
from shoal.serve.errors import DeadlinePassed, ModelMissing, PredictFailed, RequestError
from shoal.serve.manager import ServableManager
from shoal.serve.metrics import VersionMetrics
from shoal.serve.model import CompositeModel
from shoal.serve.router import RequestRoute, VersionRouter
from shoal.serve.shadow import ShadowCopies
from shoal.serve.tensors import Tensors, TensorSpec
from shoal.serve.version import ServableVersion


@dataclass(frozen=True)
class ModelAnswer:
    """What a model answered, and which version of it."""

    name: str
    number: int
    outputs: Tensors


class ModelAsker:
    """Used on one event loop."""

    def __init__(
        self,
        manager: ServableManager,
        router: VersionRouter,
        batchers: VersionBatchers,
        composites: Mapping[str, CompositeModel],
        metrics_of: Callable[[str, int], VersionMetrics],
        timeout: float,
    ) -> None:
        """`timeout`: seconds of a request that names none."""
        self._manager, self._router, self._batchers, self._composites = manager, router, batchers, composites
        self._metrics_of, self._timeout = metrics_of, timeout
        self._copies = ShadowCopies()

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
        if (composite := self._composites.get(name)) is not None:
            return await self._ask_composite(composite, inputs, began, terms)
        route = self._router.route(name, key) if number is None else RequestRoute(number)
        found = await self._answer(self._acquire(name, number, route), inputs, began, terms)
        if route.shadow is not None and route.shadow != found.number:
            self._copy(name, route.shadow, inputs, found.outputs)
        return found

    def _terms(self, timeout: float | None, level: int) -> RequestTerms:
        seconds = self._timeout if timeout is None else timeout
        return RequestTerms(asyncio.get_running_loop().time() + seconds, level)

    def _acquire(self, name: str, number: int | None, route: RequestRoute) -> ServableVersion:
        try:
            return self._manager.acquire(name, route.number)
        except ModelMissing:
            if number is not None or route.number is None:
                raise
            return self._manager.acquire(name)  # it was let go since the last poll

    async def _answer(
        self, version: ServableVersion, inputs: Tensors, began: float, terms: RequestTerms
    ) -> ModelAnswer:
        """Of one version, from the cache or from the model; the version is released."""
        metrics = self._metrics_of(version.name, version.number)
        status = 499  # the client is gone, unless an answer says otherwise
        try:
            outputs = await self._batchers.ask(version, inputs, terms, metrics)
            status = 200
            return ModelAnswer(version.name, version.number, outputs)
        except RequestError as error:
            status = error.status
            raise
        finally:
            metrics.request_done(status, clock.now() - began)
            self._manager.release(version)

    def _copy(self, name: str, number: int, inputs: Tensors, answer: Tensors) -> None:
        """Send a copy of the request to the version that is tried; its answer is only compared."""
        counts = self._metrics_of(name, number).traffic

        async def ask() -> Tensors:
            # Last in the queue, so that a copy delays no client.
            terms = self._terms(None, LAST)
            return (await self._answer(self._manager.acquire(name, number), inputs, clock.now(), terms)).outputs

        def count(agreed: int, compared: int) -> None:
            counts.agreed += agreed
            counts.compared += compared

        self._copies.send(ask, answer, count)

    async def _ask_composite(
        self, composite: CompositeModel, inputs: Tensors, began: float, terms: RequestTerms
    ) -> ModelAnswer:
        loop_time = asyncio.get_running_loop().time
        # A composite has no versions of its own; everything is counted under number 1.
        metrics, status = self._metrics_of(composite.name, 1), 499

        async def ask(part: str, given: Tensors) -> Tensors:
            if (left := terms.deadline - loop_time()) <= 0:
                raise DeadlinePassed(f"the request's time was over before {part!r} was asked")
            return (await self.infer(part, given, timeout=left, level=terms.level)).outputs

        try:
            outputs = await composite.predict(inputs, ask, self._inputs_of)
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

    def _inputs_of(self, part: str) -> tuple[TensorSpec, ...]:
        with self._manager.use(part) as version:
            assert version.servable is not None  # it is kept while it is in use
            return version.servable.inputs

    async def drain(self) -> None:
        """Wait for copies that are still computed; no new ones come."""
        await self._copies.drain(DRAIN_SECONDS)
