"""Serves the page: binds the port, prints the address, and ends when it is told to."""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from shoal.core.errors import UsageError
from shoal.watch.page.app import WatchApp
from shoal.watch.page.catalog import RunCatalog
from shoal.watch.page.launching import RunLauncher

PORT = 8765
"""Unless another is asked for; a free one if it is taken."""
BACKLOG = 128
GRACE = 1
"""Seconds that open connections have when the server ends."""


@dataclass(frozen=True)
class PageOptions:
    """What `shoal watch` was asked for."""

    root: Path
    only: list[Path] | None
    token: str
    host: str = "127.0.0.1"
    port: int | None = None


def serve(options: PageOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `say` gets the address, once it can be opened."""
    listening = bind(options.host, options.port)
    catalog = RunCatalog(options.root, options.only)
    launcher = RunLauncher(options.root.absolute()) if options.only is None else None
    app = WatchApp(catalog, launcher).build(options.token, (options.host,))
    with contextlib.suppress(OSError):
        os.nice(5)  # the training it watches goes first
    say(address(options, listening, first_page(options, catalog)))
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE, lifespan="off")
    server = uvicorn.Server(config)
    server.run(sockets=[listening])


def bind(host: str, port: int | None) -> socket.socket:
    """The socket the page is served on."""
    try:
        return _bind(host, PORT if port is None else port)
    except OSError as error:
        if port is not None:
            raise UsageError(f"cannot serve on {host}:{port}: {error.strerror}; choose another --port") from None
    try:
        return _bind(host, 0)
    except OSError as error:
        raise UsageError(f"cannot serve on {host!r}: {error.strerror}; --host is an address of this machine") from None


def _bind(host: str, port: int) -> socket.socket:
    family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, proto)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(BACKLOG)  # whoever opens the printed address at once must not be refused
    except OSError:
        listening.close()
        raise
    return listening


def first_page(options: PageOptions, catalog: RunCatalog) -> str:
    """A single run is opened at once; else the list."""
    names = list(catalog.folders()) if options.only is not None else []
    return f"run={names[0]}" if len(names) == 1 else "runs"


def address(options: PageOptions, listening: socket.socket, place: str) -> str:
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{listening.getsockname()[1]}/#{place}&token={options.token}"


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
