"""One HTTP request as the app sees it, on ASGI: reads the body within limits, writes the answer, notices who leaves."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

import msgspec

from shoal.serve.errors import BodyTooLarge, RequestError, ServerBusy

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Result = TypeVar("Result")

JSON = b"application/json"
BINARY = b"application/octet-stream"
LEAST_COMPRESSED = 1024
"""Bytes of an answer below which compression is not worth it."""


class ClientGone(Exception):  # noqa: N818  (a fact, not a mistake)
    """The client closed its connection; the answer would not be read."""


@dataclass(frozen=True)
class BodyLimits:
    """What is read of one request, and of all requests at once."""

    body: int = 64 << 20
    """Bytes of a request, after decompression too."""
    all_bodies: int = 512 << 20
    """Bytes of all requests that are being read or answered."""
    seconds: float = 30.0
    """For the whole body to come."""


@dataclass
class BodyReader:
    """Reads bodies; counts what all of them together hold."""

    limits: BodyLimits
    held: int = 0

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The body, whose length is in `held` from now on; the caller takes it away when the request is done."""
        headers = header_map(scope)
        announced = headers.get(b"content-length", b"0")
        if not announced.isdigit():
            raise RequestError(f"Content-Length {announced[:20]!r} is not a number")
        # Refused by its announced length before any of it is read.
        self._check(int(announced), int(announced))
        try:
            async with asyncio.timeout(self.limits.seconds):
                body = await self._pieces(receive)
        except TimeoutError:
            raise RequestError(f"the body did not come within {self.limits.seconds:g} s") from None
        try:
            found = self._decompressed(body, headers.get(b"content-encoding", b""))
        except RequestError:
            self.held -= len(body)
            raise
        self.held += len(found) - len(body)
        return found

    async def _pieces(self, receive: Receive) -> bytes:
        """Count what comes as it comes: many slow clients together must not fill the memory."""
        pieces, size = [], 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece = message.get("body", b"")
                self._check(size + len(piece), len(piece))
                size += len(piece)
                self.held += len(piece)
                pieces.append(piece)
                if not message.get("more_body"):
                    # Spares the copy of a body that came whole.
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        except BaseException:
            self.held -= size
            raise

    def _check(self, size: int, more: int) -> None:
        if size > self.limits.body:
            raise BodyTooLarge(f"the body has {size} bytes or more; {self.limits.body} is the most")
        if self.held + more > self.limits.all_bodies:
            raise ServerBusy(f"requests of {self.held} bytes are under way; try again later", 1.0)

    def _decompressed(self, body: bytes, encoding: bytes) -> bytes:
        if encoding in (b"", b"identity"):
            return body
        if encoding not in (b"gzip", b"deflate"):
            raise RequestError(f"Content-Encoding {encoding[:20]!r} is unknown; use gzip, deflate or none")
        engine = zlib.decompressobj(zlib.MAX_WBITS | (16 if encoding == b"gzip" else 0))
        try:
            # One byte more than allowed shows that it is too long, without unpacking the rest.
            found = engine.decompress(body, self.limits.body + 1)
        except zlib.error as error:
            raise RequestError(f"the body is no {encoding.decode()}: {error}") from None
        if len(found) > self.limits.body:
            raise BodyTooLarge(f"the body has more than {self.limits.body} bytes when it is decompressed")
        # zlib reports no error for a stream that just stops.
        if not engine.eof:
            raise RequestError(f"the body ends in the middle of its {encoding.decode()}")
        return found


def header_map(scope: Scope) -> dict[bytes, bytes]:
    """Headers by their names, in lower case as ASGI gives them; of several the last."""
    return dict(scope["headers"])


async def unless_gone(work: "asyncio.Task[Result]", receive: Receive) -> Result:
    """The result of `work`, which is cancelled as soon as the client has closed its connection."""
    gone: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGone
        return work.result()
    finally:
        gone.cancel()
        work.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def answer(
    send: Send, status: int, body: bytes, kind: bytes = JSON, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", kind),
                (b"content-length", b"%d" % len(body)),
                (b"x-content-type-options", b"nosniff"),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def answer_json(send: Send, value: Any, status: int = 200) -> None:
    await answer(send, status, msgspec.json.encode(value))


async def refuse(send: Send, error: RequestError) -> None:
    """One line, and for a busy server the time after which to come again."""
    later = [(b"retry-after", b"%d" % max(1, ceil(error.retry_after)))] if isinstance(error, ServerBusy) else []
    line = " ".join(str(error).split())
    await answer(send, error.status, msgspec.json.encode({"error": line}), JSON, [*later, *error.headers])


def _accepted(header: bytes) -> set[bytes]:
    """Encodings of an Accept-Encoding header without those of weight 0, which the client forbids."""
    found = (each.lower().replace(b" ", b"").partition(b";") for each in header.split(b","))
    return {name for name, _, weight in found if weight not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")}


def compressed(body: bytes, accepted: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The body as the client accepts it, and the header that says so."""
    if len(body) < LEAST_COMPRESSED:
        return body, []
    for name in (b"gzip", b"deflate"):
        if name in _accepted(accepted):
            # The quickest level, because answers are compressed on the event loop.
            engine = zlib.compressobj(1, wbits=zlib.MAX_WBITS | (16 if name == b"gzip" else 0))
            return engine.compress(body) + engine.flush(), [(b"content-encoding", name)]
    return body, []
