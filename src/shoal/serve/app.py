"""The server's addresses: the Open Inference Protocol under /v2, /predict for people, /metrics. See docs/serve.md.

Written on ASGI without a framework: a request for a small model takes less than a tenth of a millisecond here, and
routing would be a good part of it.
"""

import asyncio
import hmac
from urllib.parse import parse_qs

from shoal.core.http_access import OwnNames
from shoal.core.version import __version__
from shoal.serve import plain
from shoal.serve.core import ServingCore
from shoal.serve.errors import ModelMissing, RequestError
from shoal.serve.http import (
    BINARY,
    JSON,
    BodyLimits,
    BodyReader,
    ClientGone,
    Receive,
    Scope,
    Send,
    answer,
    answer_json,
    compressed,
    header_map,
    refuse,
    unless_gone,
)
from shoal.serve.openapi import openapi_document
from shoal.serve.protocol import decode_request, encode_answer
from shoal.serve.report import metrics_text
from shoal.serve.status import (
    EXTENSIONS,
    model_metadata,
    model_statistics,
    model_versions,
    repository_index,
    version_number,
)

TIMEOUT_HEADER = b"request-timeout"
"""Seconds the client waits for its answer."""
LENGTH_HEADER = b"inference-header-content-length"
NO_WAY = ModelMissing(
    "there is nothing at this address; /v2/models/NAME/infer, /predict and /metrics are, and /openapi.json lists all"
)


class WrongMethod(RequestError):  # noqa: N818  (as in errors.py)
    """The address exists and wants another method."""

    status = 405

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.headers = ((b"allow", allowed.encode()),)


class NotAllowed(RequestError):  # noqa: N818  (as in errors.py)
    """The token is missing or wrong, or the request comes from another site."""

    status = 401


class ServeApp:
    """An ASGI application over a core; `token` is asked for where there is one."""

    def __init__(
        self, core: ServingCore, *, token: str = "", names: tuple[str, ...] = (), limits: BodyLimits | None = None
    ) -> None:
        self.core, self._token = core, token.encode()
        self._names = OwnNames(names)
        self._reader = BodyReader(limits or BodyLimits())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']!r} here; this server speaks HTTP alone")
        try:
            self._check_access(scope)
            await self._route(scope, receive, send)
        except RequestError as error:
            await refuse(send, error)
        except ClientGone:
            await refuse(send, RequestError("the client is gone"))  # for servers that insist on an answer

    def _check_access(self, scope: Scope) -> None:
        headers = header_map(scope)
        host = headers.get(b"host", b"").decode("latin-1")
        # A page whose name was made to point here (DNS rebinding) sends that name as Host.
        if host not in self._names:
            raise NotAllowed(
                f"the name {host[:80]!r} is not this machine's; use its address, or start with --host NAME"
            )
        # Browsers send it with requests from pages; curl and client libraries send none.
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1") not in (f"http://{host}", f"https://{host}"):
            raise NotAllowed("requests from pages of other sites are refused")
        if self._token:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            # In constant time, so that its duration does not tell how much of a guess is right.
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                raise NotAllowed("the token is missing or wrong; send 'Authorization: Bearer TOKEN' of --token-file")

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        words = scope["path"].strip("/").split("/")
        match words:
            # Before the models' own addresses: the protocol gives this word to the statistics of all.
            case ["v2", "models", "stats"]:
                _need(scope, "GET")
                await answer_json(send, {"model_stats": model_statistics(self.core, None, None)})
            case ["v2", "models", name, *rest]:
                await self._model_route(name, rest, scope, receive, send)
            case ["predict", *rest] if len(rest) < 2:
                _need(scope, "POST")
                await self._predict(rest[0] if rest else None, scope, receive, send)
            case ["example", name]:
                _need(scope, "GET")
                await answer(send, 200, plain.example(self.core.specs(name)[1]))
            case ["metrics"]:
                _need(scope, "GET")
                await answer(send, 200, metrics_text(self.core).encode(), b"text/plain; version=0.0.4; charset=utf-8")
            case ["v2", "repository", "index"]:
                _need(scope, "POST")
                await answer_json(send, repository_index(self.core))
            case ["v2", *rest]:
                _need(scope, "GET")
                await self._server_route(rest, send)
            case ["openapi.json"]:
                _need(scope, "GET")
                await answer_json(send, openapi_document())
            case [""]:
                _need(scope, "GET")
                await answer_json(send, {"models": self.core.names(), "see": "/v2, /predict, /metrics, /openapi.json"})
            case _:
                raise NO_WAY

    async def _server_route(self, rest: list[str], send: Send) -> None:
        match rest:
            case []:
                await answer_json(send, {"name": "shoal", "version": __version__, "extensions": EXTENSIONS})
            case ["health", "live"]:
                await answer_json(send, {"live": True})
            case ["health", "ready"]:
                ready = self.core.is_ready()
                await answer_json(send, {"ready": ready}, 200 if ready else 503)
            case ["models"]:
                await answer_json(send, {"models": repository_index(self.core)})
            case _:
                raise NO_WAY

    async def _model_route(self, name: str, rest: list[str], scope: Scope, receive: Receive, send: Send) -> None:
        number = None
        if rest[:1] == ["versions"] and len(rest) > 1:
            number, rest = version_number(rest[1]), rest[2:]
        match rest:
            case ["infer"]:
                _need(scope, "POST")
                await self._infer(name, number, scope, receive, send)
            case ["feedback"] if number is None:
                _need(scope, "POST")
                await self._feedback(name, scope, receive, send)
            case ["rollback"]:
                _need(scope, "POST")
                self._need_token()
                await answer_json(send, {"name": name, "version": str(await self.core.roll_back(name, number))})
            case ["follow"]:
                _need(scope, "POST")
                self._need_token()
                await self.core.follow_newest(name)
                await answer_json(send, {"name": name, "version": str(self.core.specs(name)[0])})
            case _:
                _need(scope, "GET")
                await self._model_facts(name, number, rest, send)

    async def _model_facts(self, name: str, number: int | None, rest: list[str], send: Send) -> None:
        match rest:
            case []:
                await answer_json(send, model_metadata(self.core, name, number))
            case ["ready"]:
                ready = self.core.is_ready(name, number)
                await answer_json(send, {"name": name, "ready": ready}, 200 if ready else 503)
            case ["versions"]:
                await answer_json(send, {"name": name, "versions": model_versions(self.core, name)})
            case ["traffic"] if number is None and name in self.core.models:
                await answer_json(send, self.core.router.describe(name, self.core.versions_metrics(name)))
            case ["stats"]:
                await answer_json(send, {"model_stats": model_statistics(self.core, name, number)})
            case _:
                raise NO_WAY

    # The body stays counted in `held` until the answer exists, because binary inputs are views of it.
    async def _infer(self, name: str, number: int | None, scope: Scope, receive: Receive, send: Send) -> None:
        headers = header_map(scope)
        body = await self._reader.read(scope, receive)
        try:
            request, inputs = decode_request(body, _header_length(headers))
            timeout = _timeout(headers, request.timeout)
            asked = self.core.infer(name, inputs, number=number, timeout=timeout, key=request.id, level=request.level)
            task = asyncio.ensure_future(asked)
            found = await unless_gone(task, receive)
            payload, length = encode_answer(request, found.name, found.number, found.outputs)
        finally:
            self._reader.held -= len(body)
        extra = [] if length is None else [(LENGTH_HEADER, b"%d" % length)]
        payload, encoding = compressed(payload, headers.get(b"accept-encoding", b""))
        await answer(send, 200, payload, JSON if length is None else BINARY, [*extra, *encoding])

    async def _predict(self, name: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        # Without a name the first model is meant, so that a server of one needs none.
        name = name or query.get("model", [next(iter(self.core.names()))])[0]
        number = version_number(query["version"][0]) if "version" in query else None
        body = await self._reader.read(scope, receive)
        try:
            inputs, alone = plain.decode_plain(body, self.core.specs(name, number)[1])
            timeout = _timeout(header_map(scope), None)
            task = asyncio.ensure_future(self.core.infer(name, inputs, number=number, timeout=timeout))
            found = await unless_gone(task, receive)
        finally:
            self._reader.held -= len(body)
        await answer(send, 200, plain.encode_plain(found.name, found.number, found.outputs, alone))

    async def _feedback(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._reader.read(scope, receive)
        self._reader.held -= len(body)
        told = plain.decode_feedback(body)
        number = self.core.reward(name, told.reward, key=told.id, number=told.version)
        await answer_json(send, {"name": name, "version": str(number)})

    def _need_token(self) -> None:
        if not self._token:
            raise NotAllowed("changing what is served needs a token; start with --token-file FILE")


def _need(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        raise WrongMethod(f"{scope['method'][:20]} is not possible here; use {method}", method)


def _header_length(headers: dict[bytes, bytes]) -> int | None:
    text = headers.get(LENGTH_HEADER)
    if text is None:
        return None
    # More digits than any body can have bytes.
    if not text.isdigit() or len(text) > 12:
        raise RequestError(f"Inference-Header-Content-Length {text[:20]!r} is not a number")
    return int(text)


def _timeout(headers: dict[bytes, bytes], given: float | None) -> float | None:
    """Seconds the client waits: of the request's own words, or of a header."""
    text = headers.get(TIMEOUT_HEADER)
    if given is not None or text is None:
        return given
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise RequestError(f"Request-Timeout {text[:20]!r} is not a number of seconds up to 3600")
    return seconds
