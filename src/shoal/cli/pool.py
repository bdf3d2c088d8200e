"""`shoal pool`: machines that are kept warm between runs.

shoal pool start --on slurm --nodes 4     in a terminal of its own; Ctrl-C gives the machines back
shoal run --on pool train.py              as often as wanted: starts without importing anything
shoal pool show · shoal pool stop
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Annotated, NoReturn

import typer

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Option("--name", help="Of the pool.")]
READY = 300.0
LATE = """
encodings.idna rich.live torch.profiler
shoal.cli.again shoal.cli.consent shoal.cli.opening shoal.cli.relay shoal.cli.resume shoal.cli.visit shoal.lab.lab
shoal.launch.engines.lease shoal.launch.engines.placement shoal.launch.engines.pool shoal.launch.join
shoal.launch.lab_placement shoal.launch.listen shoal.launch.live_runs shoal.launch.local shoal.train.compiling
shoal.watch.export.follow
shoal.watch.export.mlflow shoal.watch.export.opentelemetry shoal.watch.live shoal.watch.summary
shoal.watch.tensorboard shoal.watch.worker
"""
"""Modules that `shoal run` and `shoal join` import only when needed; a pool imports them once, for all runs."""
OPTIONAL = """
torch.profiler._cupti_monitor tensorboard.compat.proto.event_pb2 tensorboard.summary.writer.record_writer
"""
"""The same, of packages that need not be installed, and what not every torch has."""


@app.callback()
def pool() -> None:
    """Machines that are kept warm between runs."""


@app.command()
def start(
    context: typer.Context,
    on: Annotated[str, typer.Option(metavar="ENGINE", help="What starts the machines: ssh:A,B, slurm, ray, local.")],
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines in all, this one included.")] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Of each machine.")] = 1,
    name: Name = "default",
) -> None:
    """Start an agent on every machine and wait for runs; Ctrl-C, or shoal pool stop, ends it."""
    from shoal.cli.errors import interruptible, usage_errors
    from shoal.core import record
    from shoal.core.clock import Deadline
    from shoal.launch.engines.base import EngineOptions
    from shoal.launch.engines.table import make_engine, split_on
    from shoal.launch.pool.server import PoolServer

    with usage_errors(), interruptible():
        kind, where = split_on(on)
        engine = make_engine(kind, EngineOptions(where, nodes, workers, name=name, runs=record.runs_root().absolute()))
        engine.allocate()
        server = PoolServer(engine, name, partial(run_words, context.obj))
        try:
            server.open()
            import_all()
            machines, deadline = len(engine.machines()), Deadline.after(READY)
            # Not for ever: a pool with fewer machines than asked for can be used too.
            while server.ready < machines and not server.stopping and not deadline.expired:
                server.serve()
            said = f"{server.ready} of {machines} machines are warm"
            typer.echo(f"shoal: pool {name}: {said}; shoal run --on pool{suffix(name)} uses them", err=True)
            while not server.stopping:
                server.serve(0.05)
        finally:
            server.close()


@app.command()
def serve(context: typer.Context) -> None:
    """An agent of a pool on its machine; shoal pool start runs it."""
    from shoal.launch.pool.agent import PoolAgent

    import_all()
    PoolAgent(partial(run_words, context.obj)).serve()


@app.command()
def show(name: Name = "default") -> None:
    """The machines of a pool, and which of them are leased."""
    from shoal.cli.errors import usage_errors
    from shoal.launch.engines.pool_protocol import AskMachines, PoolConnection, PoolMachines

    with usage_errors():
        connection = PoolConnection.open(name)
        connection.send(AskMachines())
        answer, _ = connection.receive()
        assert isinstance(answer, PoolMachines)
        for row in answer.rows:
            state = "leased" if row.leased else "free" if row.ready else "starting"
            typer.echo(f"{row.name}: {row.workers} workers, {state}, leased {row.leases} times")


@app.command()
def stop(name: Name = "default") -> None:
    """End a pool and give its machines back."""
    from shoal.cli.errors import usage_errors
    from shoal.launch.engines.pool_protocol import PoolConnection, StopPool

    with usage_errors():
        connection = PoolConnection.open(name)
        connection.send(StopPool())
        while not connection.over:
            connection.receive()


def suffix(name: str) -> str:
    return "" if name == "default" else f":{name}"


def import_all() -> None:
    """Import whatever a run needs, so that a process forked from this one imports nothing but the user's modules."""
    import contextlib
    import gc

    from shoal.cli.warm import warm

    warm()
    for name in LATE.split():
        importlib.import_module(name)
    for name in OPTIONAL.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # First, so that no garbage is frozen with the rest.
    gc.collect()
    gc.freeze()  # or each forked process would look through all of it, and copy the memory it lies in


def run_words(main: Callable[[list[str]], NoReturn], words: list[str]) -> int:
    """A command in this forked process; returns its exit code. `main` is what runs this command, too."""
    from shoal.core.signals import as_python_has_them

    # The pool's handlers were inherited with the fork and are not this command's.
    as_python_has_them()
    try:
        main(words)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
