"""`shoal serve`: trained models answer requests over HTTP."""

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.models.registry import Registry
    from shoal.serve.core import ServingCore
    from shoal.serve.follow import FollowSource
    from shoal.serve.scaling import ScalingGoal
    from shoal.serve.server import ServerOptions
    from shoal.serve.source import LoadOptions
    from shoal.serve.tls import TlsFiles

MOST_PROCESSES = 256
FIRST_WAIT = 600
"""Seconds that a run may take to its first checkpoint."""
MISSING = "serving needs packages that are not installed ({}); install them with: pip install 'shoal[serve]'"


def serve(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]MODEL…",
            help="NAME@ALIAS, NAME:VERSION or NAME of the registry; a folder of versions; a .onnx, .pt2 or .json file; "
            "FILE.py:FUNCTION.",
        ),
    ] = None,
    follow: Annotated[
        str | None, typer.Option(metavar="RUN", help="Serve each checkpoint of the run; --rollout shadow unless given.")
    ] = None,
    runs: Annotated[str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Else 8080, or a free one.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve on; any other than this machine's own needs --token-file.")
    ] = "127.0.0.1",
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Requests must show its token; made if it is missing.")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(metavar="FILE", help="Encrypt: the server's certificate.")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None,
    tls_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="Clients must show a certificate of this authority.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the registry; else $SHOAL_MODELS, else ./models.")
    ] = None,
    module: Annotated[
        str | None, typer.Option(metavar="FILE.py:FUNCTION", help="Gives the torch module of versions without program.")
    ] = None,
    combine: Annotated[
        list[str] | None, typer.Option(metavar="NAME=A>B", help="A model of models: one after the other, or A+B, mean.")
    ] = None,
    goal: Annotated[str, typer.Option(metavar="TIME", help="Latency that batches are sized for.")] = "100ms",
    batch: Annotated[int, typer.Option(min=1, max=65536, help="Samples in a batch at most; 1: no batching.")] = 1024,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Batches of a model at the same time.")] = 1,
    queue: Annotated[int, typer.Option(min=1, help="Samples of a model that may wait; more are refused.")] = 1024,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Of requests that name none.")] = "30s",
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Loads that do not fit this are refused: 2GB.")
    ] = None,
    keep: Annotated[int, typer.Option(min=1, max=64, help="Newest versions served beside each other.")] = 1,
    poll: Annotated[str, typer.Option(metavar="TIME", help="Between two looks for new versions.")] = "1s",
    processes: Annotated[
        str, typer.Option(metavar="N|MIN:MAX", help="That answer; as many as the load needs; 0:4 ends idle ones, too.")
    ] = "1",
    cache: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Answers to keep for equal requests: 64MB; else none.")
    ] = None,
    traffic: Annotated[
        str, typer.Option(metavar="POLICY", help="Versions that answer: newest, ab:20% (a comparison), bandit.")
    ] = "",
    rollout: Annotated[
        str, typer.Option(metavar="STAGES", help="Try new versions: shadow,canary:5%; direct: at once, watched.")
    ] = "",
    rule: Annotated[
        str, typer.Option(metavar="RULE", help="Of --rollout, else it goes back: requests>=100,errors<=1%,latency<=2.")
    ] = "",
    grpc_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Answer gRPC too, at this port; 0: a free one.")
    ] = None,
    trust_pt2: Annotated[
        bool, typer.Option("--trust-pt2", help="Read .pt2 files, which may run code: only your own.")
    ] = False,
) -> None:
    """Serve trained models over HTTP: the Open Inference Protocol, and plain JSON for curl."""
    from shoal.cli.errors import interruptible, usage_errors
    from shoal.core.errors import UsageError

    with usage_errors(), interruptible():
        try:
            import shoal.serve.server  # noqa: F401  (whether its packages are there)
        except ModuleNotFoundError as error:
            raise UsageError(MISSING.format(error.name)) from None
        from shoal.launch.policy import own_cores
        from shoal.serve.batcher import BatchSettings
        from shoal.serve.core import CoreSettings
        from shoal.serve.router import TrafficSettings
        from shoal.serve.scaling import ScalingGoal
        from shoal.serve.tls import TlsFiles

        least, most = process_range(processes)
        settings = CoreSettings(
            batch=BatchSettings(concurrency=concurrency, queue=queue),
            slots=max(concurrency, own_cores() // most),
            goal=seconds(goal, "--goal"),
            most_rows=batch if batch > 1 else CoreSettings().most_rows,
            batching=batch > 1,
            timeout=seconds(timeout, "--timeout"),
            keep=keep,
            cache=size(cache, "--cache") if cache is not None else 0,
            traffic=TrafficSettings.parse(traffic, rollout or ("shadow" if follow and not traffic else ""), rule),
        )
        tls = TlsFiles.parse(tls_cert, tls_key, tls_ca)
        options = server_options(host, port, token_file, seconds(poll, "--poll"), grpc_port, tls)
        followed = run_to_follow(follow, runs, what or []) if follow is not None else None
        if not what and followed is None:
            raise UsageError("nothing to serve; give a model, such as digits@prod, or --follow RUN")
        if grpc_port is not None and least == 0:
            raise UsageError(f"--processes {processes} may end all, and only HTTP starts one; give 1:{most} with gRPC")

        def make(shared: Path | None) -> "ServingCore":
            return make_core(what or [], combine or [], settings, models, module, memory, trust_pt2, shared, followed)

        if followed is not None:
            await_checkpoint(followed)

        start(make, options, ScalingGoal(least, most, settings.goal))


def seconds(text: str, option: str) -> float:
    from shoal.core.errors import UsageError
    from shoal.core.units import TimeSpan

    found = TimeSpan.parse(text).seconds
    if found <= 0:
        raise UsageError(f"{option} {text} is no time; write 100ms or 2s")
    return found


def process_range(text: str) -> tuple[int, int]:
    """`4` is 4 to 4, `1:4` is 1 to 4."""
    from shoal.core.errors import UsageError

    low, _, high = text.partition(":")
    if not (low.isdecimal() and (high or low).isdecimal() and 0 <= int(low) <= int(high or low) <= MOST_PROCESSES):
        raise UsageError(f"--processes {text} is no number of processes; write 4, or 1:4, up to {MOST_PROCESSES}")
    if not int(high or low):
        raise UsageError(f"--processes {text} answers nothing; write 0:1 for one that ends while nobody asks")
    return int(low), int(high or low)


def size(text: str, option: str) -> int:
    """`512MB`, `2GB` or bytes."""
    import re

    from shoal.core.errors import UsageError

    units = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in units:
        raise UsageError(f"{option} {text!r} is no size; write 512MB or 2GB")
    return int(float(found[1]) * units[found[2]])


def server_options(
    host: str, port: int | None, file: str | None, poll: float, grpc: int | None, tls: "TlsFiles | None" = None
) -> "ServerOptions":
    from shoal.core.errors import UsageError
    from shoal.core.http_access import is_loopback, read_token
    from shoal.serve.server import ServerOptions

    if not is_loopback(host) and file is None and (tls is None or tls.ca is None):
        raise UsageError(
            f"--host {host} lets other machines ask; let them show a token of a file: --token-file FILE, or a "
            "certificate: --tls-ca FILE"
        )
    token = read_token(Path(file).expanduser()) if file is not None else ""
    return ServerOptions(host, port, token, poll, grpc, tls)


def run_to_follow(run: str, runs: str | None, what: list[str]) -> Path:
    """The folder of the run."""
    from shoal.core.errors import UsageError
    from shoal.core.record import runs_root
    from shoal.watch.record import resolve

    if len(what) > 1:
        raise UsageError(f"--follow {run} serves one model; give its name or its registered version, not {len(what)}")
    return resolve(runs_root(runs), run)


def await_checkpoint(directory: Path) -> None:
    """A run that has just begun has none yet."""
    import time

    from shoal.serve.follow import has_checkpoint, wait_for_checkpoint

    if not has_checkpoint(directory):
        typer.echo(f"shoal: waiting for the first checkpoint of {directory.name}", err=True)
        wait_for_checkpoint(directory, lambda: time.sleep(0.5), attempts=2 * FIRST_WAIT)


def follow_source(directory: Path, what: list[str], registry: "Registry", how: "LoadOptions") -> "FollowSource":
    """The run's checkpoints under the name of the model: given, or that of the script."""
    from shoal.core.ids import PATTERN
    from shoal.models.lineage import script_name
    from shoal.serve.follow import FilledModules, FollowSource, RefreshedPrograms
    from shoal.watch.record import RunRecord

    name, equals, ref = (what[0] if what else "").partition("=")
    if not equals or not PATTERN.fullmatch(name):
        name, ref = "", what[0] if what else ""
    ref = ref or script_name(RunRecord.open(directory).info.script)
    programs = FilledModules(how.module) if how.module is not None else RefreshedPrograms(registry, ref, how)
    programs.check()
    return FollowSource(name or re.split("[:@]", ref)[0], directory, programs)


def make_core(
    what: list[str],
    combine: list[str],
    settings: object,
    models: str | None,
    module: str | None,
    memory: str | None,
    trusted: bool,
    shared: Path | None,
    followed: Path | None = None,
) -> "ServingCore":
    from shoal.models.registry import Registry
    from shoal.serve.core import CoreSettings, ServingCore
    from shoal.serve.mapped import MappedPrograms
    from shoal.serve.model import CompositeModel
    from shoal.serve.source import LoadOptions, VersionSource
    from shoal.serve.targets import SourceFinder

    assert isinstance(settings, CoreSettings)
    mapped = MappedPrograms(shared) if shared is not None else None
    registry, how = Registry(models), LoadOptions(trusted=trusted, module=module, mapped=mapped)
    finder, sources = SourceFinder(registry, how), list[VersionSource]()
    if followed is not None:
        sources.append(follow_source(followed, what, registry, how))
    else:
        sources += [finder.find(word) for word in what]
    return ServingCore(
        sources,
        settings,
        composites=[CompositeModel.parse(word) for word in combine],
        budget=size(memory, "--memory") if memory is not None else None,
        shared=shared,
    )


def start(make: "Callable[[Path | None], ServingCore]", options: "ServerOptions", goal: "ScalingGoal") -> None:
    from shoal.core.http_access import is_loopback
    from shoal.serve.server import serve as serve_models
    from shoal.serve.server import serve_processes

    def say(line: str) -> None:
        typer.echo(f"shoal: {line}", err=True)

    if not is_loopback(options.host) and options.tls is None:
        say("note: answers are not encrypted: on a network that is not yours, put a TLS proxy in front, or use ssh -L")
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        if goal.least == goal.most == 1:
            serve_models(make(None), options, say)
        else:
            serve_processes(make, options, goal, say)
