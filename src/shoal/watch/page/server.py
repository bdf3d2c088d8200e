"""Serves the page: binds the port, prints the address, and ends when it is told to."""

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from shoal.core.http_access import bind
from shoal.watch.page.app import WatchApp
from shoal.watch.page.catalog import RunCatalog
from shoal.watch.page.launching import RunLauncher

PORT = 8765
"""Unless another is asked for; a free one if it is taken."""
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
    listening = bind(options.host, options.port, PORT)
    catalog = RunCatalog(options.root, options.only)
    # A page of chosen runs starts none: a new one would not be among them.
    launcher = RunLauncher(options.root.absolute()) if options.only is None else None
    app = WatchApp(catalog, launcher).build(options.token, (options.host,))
    with contextlib.suppress(OSError):
        os.nice(5)  # the training it watches goes first
    say(address(options, listening, first_page(options, catalog)))
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE, lifespan="off")
    server = uvicorn.Server(config)
    server.run(sockets=[listening])


def first_page(options: PageOptions, catalog: RunCatalog) -> str:
    """A single run is opened at once; else the list."""
    names = list(catalog.folders()) if options.only is not None else []
    return f"run={names[0]}" if len(names) == 1 else "runs"


def address(options: PageOptions, listening: socket.socket, place: str) -> str:
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{listening.getsockname()[1]}/#{place}&token={options.token}"
