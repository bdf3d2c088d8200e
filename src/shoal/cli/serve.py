"""`shoal serve`: trained models answer requests over HTTP."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.errors import interruptible, usage_errors
from shoal.cli.option_groups import with_option_groups
from shoal.cli.serve_options import (
    AddressOptions,
    BatchOptions,
    CapacityOptions,
    ModelOptions,
    VersionOptions,
    read_process_range,
    read_seconds,
    read_size,
)
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.cli.serve_core import CoreMaker
    from shoal.launch.engines.base import LaunchEngine
    from shoal.serve.core_settings import CoreSettings
    from shoal.serve.scaling import ScalingGoal
    from shoal.serve.server import ServerOptions

MISSING = "serving needs packages that are not installed ({}); install them with: pip install 'shoal[serve]'"


@with_option_groups
def serve(
    models: ModelOptions,
    address: AddressOptions,
    batches: BatchOptions,
    versions: VersionOptions,
    capacity: CapacityOptions,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]MODEL…",
            help="NAME@ALIAS, NAME:VERSION or NAME of the registry; a folder of versions; a .onnx, .pt2 or .json file; "
            "FILE.py:FUNCTION.",
        ),
    ] = None,
) -> None:
    """Serve trained models over HTTP: the Open Inference Protocol, and plain JSON for curl."""
    with usage_errors(), interruptible():
        check_packages()
        from shoal.cli.serve_core import CoreMaker, await_checkpoint, find_run
        from shoal.serve.scaling import ScalingGoal

        least, most = read_process_range(capacity.processes)
        settings = core_settings(batches, versions, most, follows=models.follow is not None)
        options = server_options(address, versions.poll)
        followed = find_run(models, what or []) if models.follow is not None else None
        if not what and followed is None:
            raise UsageError("nothing to serve; give a model, such as digits@prod, or --follow RUN")
        if address.grpc_port is not None and least == 0:
            raise UsageError(
                f"--processes {capacity.processes} may end all, and only HTTP starts one; give 1:{most} with gRPC"
            )
        maker = CoreMaker(tuple(what or ()), models, settings, read_size(capacity.memory, "--memory"), followed)
        if followed is not None:
            await_checkpoint(followed)
        engine = find_engine(capacity)
        start(maker, options, ScalingGoal(least, most, settings.goal), engine)


def check_packages() -> None:
    try:
        import shoal.serve.server  # noqa: F401  (whether its packages are there)
    except ModuleNotFoundError as error:
        raise UsageError(MISSING.format(error.name)) from None


def core_settings(batches: BatchOptions, versions: VersionOptions, most: int, *, follows: bool) -> "CoreSettings":
    """Of each of the `most` processes there may be."""
    from shoal.launch.policy import own_cores
    from shoal.serve.batcher import BatchSettings
    from shoal.serve.core_settings import CoreSettings
    from shoal.serve.router import TrafficSettings

    # A checkpoint in the middle of training may be worse than the one before, so it is tried on copies first.
    rollout = versions.rollout or ("shadow" if follows and not versions.traffic else "")
    return CoreSettings(
        batch=BatchSettings(concurrency=batches.concurrency, queue=batches.queue),
        # The cores are divided among the processes there may be, not among those there are.
        slots=max(batches.concurrency, own_cores() // most),
        goal=read_seconds(batches.goal, "--goal"),
        most_rows=batches.batch if batches.batch > 1 else CoreSettings().most_rows,
        batching=batches.batch > 1,
        timeout=read_seconds(batches.timeout, "--timeout"),
        keep=versions.keep,
        cache=read_size(batches.cache, "--cache") or 0,
        traffic=TrafficSettings.parse(versions.traffic, rollout, versions.rule),
    )


def server_options(address: AddressOptions, poll: str) -> "ServerOptions":
    from shoal.core.http_access import is_loopback, read_token
    from shoal.serve.server import ServerOptions
    from shoal.serve.tls import TlsFiles

    tls = TlsFiles.parse(address.tls_cert, address.tls_key, address.tls_ca)
    file, period = address.token_file, read_seconds(poll, "--poll")
    if not is_loopback(address.host) and file is None and (tls is None or tls.ca is None):
        raise UsageError(
            f"--host {address.host} lets other machines ask; let them show a token of a file: --token-file FILE, or a "
            "certificate: --tls-ca FILE"
        )
    token = read_token(Path(file).expanduser()) if file is not None else ""
    return ServerOptions(address.host, address.port, token, period, address.grpc_port, tls)


def find_engine(capacity: CapacityOptions) -> "LaunchEngine | None":
    """What starts replicas; None: this machine computes itself."""
    if capacity.on is None:
        if capacity.replicas is not None:
            raise UsageError(f"--replicas {capacity.replicas} is for an engine; say which with --on ray")
        return None
    from shoal.core import record
    from shoal.core.ids import new_id
    from shoal.launch.engines.base import EngineOptions
    from shoal.launch.engines.table import make_engine, split_on

    if capacity.processes != "1":
        raise UsageError(f"--processes {capacity.processes} --on {capacity.on}: replicas compute; drop --processes")
    name, where = split_on(capacity.on)
    # This machine counts as one of the engine's and computes nothing.
    nodes = capacity.replicas + 1 if capacity.replicas is not None else None
    return make_engine(name, EngineOptions(where, nodes, name=new_id(), runs=record.runs_root().absolute()))


def start(make: "CoreMaker", options: "ServerOptions", goal: "ScalingGoal", engine: "LaunchEngine | None") -> None:
    from shoal.core.http_access import is_loopback
    from shoal.serve.replicas.machines import ReplicaMachines
    from shoal.serve.server import serve as serve_models
    from shoal.serve.server import serve_processes, serve_replicated

    if not is_loopback(options.host) and options.tls is None:
        say("note: answers are not encrypted: on a network that is not yours, put a TLS proxy in front, or use ssh -L")
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        if engine is not None:
            serve_replicated(make.replicated, options, ReplicaMachines(engine, say), say)
        elif goal.least == goal.most == 1:
            serve_models(make(None), options, say)
        else:
            serve_processes(make, options, goal, say)


def say(line: str) -> None:
    typer.echo(f"shoal: {line}", err=True)
