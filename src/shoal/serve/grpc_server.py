"""The Open Inference Protocol over gRPC, beside HTTP and over the same core, on the same event loop.

gRPC takes several times the processor time of HTTP for a small request; it is for clients that speak nothing else.
"""

import hmac
from collections.abc import Awaitable, Callable
from math import ceil
from typing import Any

from shoal.core.errors import UsageError
from shoal.core.version import __version__
from shoal.serve.core import ServingCore
from shoal.serve.errors import RequestError, ServerBusy
from shoal.serve.grpc_messages import METHODS, SERVICE, message_classes
from shoal.serve.grpc_tensors import decode_message, fill_answer
from shoal.serve.http import BodyLimits
from shoal.serve.status import EXTENSIONS, model_metadata, model_statistics, repository_index, version_number
from shoal.serve.tls import TlsFiles

MOST_CALLS = 256
"""Calls at the same time; more are refused with RESOURCE_EXHAUSTED, because each may hold a whole body."""
MISSING = "--grpc-port needs packages that are not installed ({}); install them with: pip install 'shoal[grpc]'"
CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Status of gRPC by HTTP status."""
Handler = Callable[[Any, Any], Awaitable[Any]]


def check_grpc() -> None:
    """UsageError unless the packages are there. Nothing is started: processes are forked after this."""
    from importlib.util import find_spec

    for package in ("grpc", "google.protobuf"):
        try:
            found = find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise UsageError(MISSING.format(package))


class InferenceService:
    """Answers the protocol's methods; each is named as the method."""

    def __init__(self, core: ServingCore, token: str = "") -> None:
        self._core, self._token, self._classes = core, token.encode(), message_classes()

    def handlers(self, grpc: Any) -> dict[str, Any]:
        return {
            method: grpc.unary_unary_rpc_method_handler(
                self._guarded(getattr(self, method), grpc),
                request_deserializer=self._classes[f"{method}Request"].FromString,
                response_serializer=self._classes[f"{method}Response"].SerializeToString,
            )
            for method in METHODS
        }

    def _guarded(self, handler: Handler, grpc: Any) -> Handler:
        """The handler behind the token, with errors as gRPC has them."""

        async def answer(request: Any, context: Any) -> Any:
            try:
                self._check_token(context)
                return await handler(request, context)
            except RequestError as error:
                if isinstance(error, ServerBusy):
                    context.set_trailing_metadata((("retry-after", str(max(1, ceil(error.retry_after)))),))
                code = getattr(grpc.StatusCode, CODES.get(error.status, "UNKNOWN"))
                # One line, because gRPC sends it as a header.
                await context.abort(code, " ".join(str(error).split()))

        return answer

    def _check_token(self, context: Any) -> None:
        if not self._token:
            return
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        kind, _, word = str(given).partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(word.strip().encode(), self._token):
            error = RequestError("the token is missing or wrong; send metadata authorization: Bearer TOKEN")
            error.status = 401
            raise error

    def _made(self, name: str, /, **fields: Any) -> Any:
        return self._classes[name](**fields)

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802  (names of the protocol)
        return self._made("ServerLiveResponse", live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._made("ServerReadyResponse", ready=self._core.is_ready())

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        ready = self._core.is_ready(request.name, _number(request.version))
        return self._made("ModelReadyResponse", ready=ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self._made("ServerMetadataResponse", name="shoal", version=__version__, extensions=EXTENSIONS)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = model_metadata(self._core, request.name, _number(request.version))
        for side in ("inputs", "outputs"):
            found[side] = [self._made("TensorMetadata", **each) for each in found[side]]
        return self._made("ModelMetadataResponse", **found)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        asked, inputs = decode_message(request)
        # Both a call and its request may carry a deadline; the earlier one holds.
        times = [each for each in (context.time_remaining(), asked.timeout) if each is not None]
        found = await self._core.infer(
            request.model_name,
            inputs,
            number=_number(request.model_version),
            timeout=min(times, default=None),
            key=asked.id,
            level=asked.level,
        )
        answer = self._made("ModelInferResponse", model_name=found.name, model_version=str(found.number))
        return fill_answer(answer, asked, found.outputs)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = model_statistics(self._core, request.name or None, _number(request.version))
        return self._made("ModelStatisticsResponse", model_stats=[self._counts(each) for each in found])

    def _counts(self, told: dict[str, Any]) -> Any:
        known = self._classes["InferStatistics"].DESCRIPTOR.fields_by_name
        durations = {
            name: self._made("StatisticDuration", **each)
            for name, each in told["inference_stats"].items()
            if name in known
        }
        plain = {key: told[key] for key in ("name", "version", "inference_count", "execution_count")}
        return self._made("ModelStatistics", **plain, inference_stats=self._made("InferStatistics", **durations))

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        found = [each for each in repository_index(self._core) if each["state"] == "READY" or not request.ready]
        return self._made("RepositoryIndexResponse", models=[self._made("ModelIndex", **each) for each in found])


def _number(text: str) -> int | None:
    return version_number(text) if text else None


async def start_grpc(
    core: ServingCore, address: str, token: str, limits: BodyLimits, tls: TlsFiles | None = None
) -> Any:
    """A server that answers at `address`, whose port other processes of this server may share."""
    import grpc
    import grpc.aio

    options = [
        ("grpc.max_receive_message_length", limits.body),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 1),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MOST_CALLS)
    handlers = InferenceService(core, token).handlers(grpc)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    if tls is not None:
        server.add_secure_port(address, tls.for_grpc())
    else:
        server.add_insecure_port(address)
    await server.start()
    return server
