"""`shoal replica`: a process that computes batches for a server on another machine; `shoal serve --on` starts it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.membership.credentials import ClientCredentials

LOST = 75
"""Exit code where the server is gone: worth another try."""


def replica(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Of the server, for its replicas.")],
    key: Annotated[str, typer.Option(metavar="FILE", help="Its invitation; - reads it from standard input.")],
    name: Annotated[str, typer.Option(help="By which the server calls this replica.")] = "replica",
    slots: Annotated[int, typer.Option(min=1, max=256, help="Batches to compute at the same time.")] = 1,
) -> None:
    """Compute for a server that has invited this machine. `shoal serve --on` runs it."""
    from shoal.cli.errors import interruptible, usage_errors
    from shoal.core.errors import ShoalError, UsageError
    from shoal.launch.address import parse
    from shoal.serve.replicas.worker import ReplicaIdentity, ReplicaWorker

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of libraries; a batch is computed by one thread
    with usage_errors(), interruptible():
        credentials, check = read_invitation(key)
        host, port = parse(address, "replica")
        try:
            ReplicaWorker(f"tcp://{host}:{port}", credentials, ReplicaIdentity(name, slots), check).run()
        except UsageError:
            raise
        # The server is gone: the engine may start this again, unlike after a refusal.
        except ShoalError as error:
            typer.echo(f"shoal: {error}", err=True)
            raise typer.Exit(LOST) from None


def read_invitation(key: str) -> "tuple[ClientCredentials, Callable[[], None]]":
    """The keys, and what raises KeyboardInterrupt once the process that started this one is gone."""
    from shoal.core.errors import UsageError
    from shoal.launch.engines.lease import read_secret
    from shoal.membership.credentials import ClientCredentials
    from shoal.transport.keys import KeyFile

    check: Callable[[], None] = lambda: None  # noqa: E731
    if key == "-":
        text, lease = read_secret(0)
        found = KeyFile.parse(text, "the text of standard input", "give an invitation of shoal serve --on")
        check = lease.check if lease is not None else check
    else:
        found = KeyFile.read(Path(key))
    if found.run is None:
        raise UsageError(f"--key {key} is a pair of keys, not an invitation; shoal serve --on makes one itself")
    return ClientCredentials(found.keys, found.run), check
