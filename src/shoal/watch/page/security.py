"""Access to the page: requests must show the token, from a page of this server, by a name that is this machine's own.

- The token comes as `Authorization: Bearer …`. It is in no cookie, so another site's form or image cannot use it. The
  printed address holds it behind `#`, which browsers never send.
- The Host header must be an IP address or a name of this machine: a foreign name that was made to point here (DNS
  rebinding) is refused.
- A request that names an Origin must come from the page itself.
"""

import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.core.http_access import OwnNames

OPEN = ("/", "/static/", "/plotly.min.js", "/favicon.ico")
"""What holds nothing of a run, and is served without a token: a path, or the beginning of one."""
HEADERS = {
    # No script but the page's own and Plotly's, both from this server.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class AccessGuard:
    """ASGI middleware: checks every request before anything else sees it."""

    def __init__(self, app: ASGIApp, token: str, names: tuple[str, ...] = ()) -> None:
        self.app, self._token = app, token.encode()
        self._names = OwnNames(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Start and end of the server, not a request.
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']!r} here; this server speaks HTTP alone")
        headers = Headers(scope=scope)
        status, error = self._refusal(scope["path"], headers)
        if status:
            answer = JSONResponse({"error": error}, status_code=status)
            await answer(scope, receive, _with_headers(send))
            return
        await self.app(scope, receive, _with_headers(send))

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str]:
        host = headers.get("host", "")
        if host not in self._names:
            return 403, f"the name {host[:80]!r} is not this machine's; use its address, 127.0.0.1, or localhost"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, f"requests from {origin[:80]!r} are refused; open the page that shoal watch printed"
        if path in OPEN or path.startswith("/static/"):
            return 0, ""
        kind, _, given = headers.get("authorization", "").partition(" ")
        # In constant time, so that its duration does not tell how much of a guess is right.
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
            return 401, "the token is missing or wrong; use the address that shoal watch printed"
        return 0, ""


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return wrapped
