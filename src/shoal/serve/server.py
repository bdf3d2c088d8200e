"""The process that serves: loads the models, binds the port, prints how to ask, and ends when it is told to."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import uvicorn

from shoal.core.errors import UsageError
from shoal.core.http_access import bind, reserve
from shoal.core.signals import as_interrupts
from shoal.serve.app import ServeApp
from shoal.serve.core import ServingCore
from shoal.serve.grpc_server import check_grpc, start_grpc
from shoal.serve.http import BodyLimits
from shoal.serve.plain import example
from shoal.serve.replicas.hub import ReplicaHub
from shoal.serve.replicas.machines import ReplicaMachines
from shoal.serve.scaling import ScalingGoal
from shoal.serve.serving_notice import announce_for_ever
from shoal.serve.shared_metrics import SharedMetrics
from shoal.serve.supervisor import PERIOD, WorkerSupervisor
from shoal.serve.tls import TlsFiles
from shoal.serve.version import ServableVersion
from shoal.serve.worker_channel import ReportSender, WorkerReport

PORT = 8080
"""Unless another is asked for; a free one if it is taken."""
GRACE = 10
"""Seconds that requests under way have when the server ends."""
MOST_CONNECTIONS = 2048
LONGEST_EXAMPLE = 200
"""Characters of a request that is printed as it is; a longer one is fetched from the server."""


@dataclass(frozen=True)
class ServerOptions:
    """Where to listen, and how often to look for new versions."""

    host: str = "127.0.0.1"
    port: int | None = None
    token: str = ""
    poll: float = 1.0
    grpc_port: int | None = None
    """Where gRPC is answered too; 0: a free port."""
    tls: TlsFiles | None = None
    limits: BodyLimits = field(default_factory=BodyLimits)


@contextlib.contextmanager
def reserved_grpc(options: ServerOptions) -> Iterator[ServerOptions]:
    """The options with the port of gRPC, which is kept while the block runs."""
    if options.grpc_port is None:
        yield options
        return
    check_grpc()
    with reserve(options.host, options.grpc_port) as held:
        yield replace(options, grpc_port=held.getsockname()[1])


def serve(core: ServingCore, options: ServerOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `say` gets the address and a command to try, once both work."""
    load_all(core)
    # After loading, so that no client can connect before there is an answer.
    with bind(options.host, options.port, PORT) as listening, reserved_grpc(options) as options:
        _serve(core, options, listening, say)


def _serve(core: ServingCore, options: ServerOptions, listening: socket.socket, say: Callable[[str], None]) -> None:
    def greet() -> None:
        for line in greeting(core, options, listening):
            say(line)

    core.on_change = ChangeReporter(core, say)
    config = make_config(core, options)
    # The event loop that uvicorn would choose: uvloop where it is installed.
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(answer_requests(core, uvicorn.Server(config), listening, options, greet))


def serve_processes(
    make: Callable[[Path], ServingCore], options: ServerOptions, goal: ScalingGoal, say: Callable[[str], None]
) -> None:
    """Serve with several processes until SIGINT or SIGTERM; `make` makes the core of one, given their common folder."""
    # Before any worker exists, because all of them share this socket.
    listening = bind(options.host, options.port, PORT)
    import onnxruntime  # noqa: F401  (workers are forked, so that none has to import it)

    scratch = tempfile.TemporaryDirectory(prefix="shoal-serve-", ignore_cleanup_errors=True)
    with scratch as folder, reserved_grpc(options) as options:
        (Path(folder) / "metrics").mkdir()
        counts = SharedMetrics(Path(folder) / "metrics")

        def work(slot: int, sender: ReportSender) -> None:
            serve_worker(lambda: make(Path(folder)), options, listening, sender)

        WorkerSupervisor(work, goal, listening, say, counts.retire).run(in_lines(say))


def serve_replicated(
    make: Callable[[ReplicaHub], ServingCore],
    options: ServerOptions,
    machines: ReplicaMachines,
    say: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM with one process, whose batches other machines compute; `make` makes its core."""
    listening = bind(options.host, options.port, PORT)
    scratch = tempfile.TemporaryDirectory(prefix="shoal-serve-", ignore_cleanup_errors=True)
    with contextlib.closing(machines), scratch as folder, reserved_grpc(options) as options:

        def work(slot: int, sender: ReportSender) -> None:
            def tell(line: str) -> None:
                sender.send(WorkerReport("say", line))

            serve_worker(lambda: make(machines.open_hub(Path(folder), tell)), options, listening, sender)

        # One process, because replicas connect to one address, that of its hub.
        WorkerSupervisor(work, ScalingGoal(1, 1), listening, say, beside=machines.tick).run(in_lines(say))


def in_lines(say: Callable[[str], None]) -> Callable[[str], None]:
    def say_all(text: str) -> None:
        for line in text.splitlines():
            say(line)

    return say_all


def serve_worker(
    make: Callable[[], ServingCore], options: ServerOptions, listening: socket.socket, sender: ReportSender
) -> None:
    """One of the processes that answer, until it is interrupted."""

    def say(line: str) -> None:
        sender.send(WorkerReport("say", line))

    with contextlib.suppress(KeyboardInterrupt), as_interrupts():
        try:
            core = make()
            load_all(core)
        except UsageError as error:
            sender.send(WorkerReport("error", str(error)))
            return
        core.on_change = ChangeReporter(core, say)
        config = make_config(core, options)

        def greet() -> None:
            sender.send(WorkerReport("ready", "\n".join(greeting(core, options, listening))))

        def report() -> None:
            sender.send(load_of(core))

        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(answer_requests(core, uvicorn.Server(config), listening, options, greet, report))


def load_of(core: ServingCore) -> WorkerReport:
    """What the processes of the server are scaled by."""
    arrived = sum(sum(each.statuses.values()) for each in core.metrics.values())
    # Requests that have arrived and are not counted by status yet.
    waiting = sum(each.users for each in core.manager.versions())
    busy = sum(each.computed for each in core.metrics.values())
    return WorkerReport("load", arrived=arrived + waiting, waiting=waiting, busy=busy)


async def report_for_ever(report: Callable[[], None]) -> None:
    while True:
        report()
        await asyncio.sleep(PERIOD)


class ChangeReporter:
    """Says which version is served from now on, and once why one is not."""

    def __init__(self, core: ServingCore, say: Callable[[str], None]) -> None:
        self._say = say
        self._word = "serving" if core.settings.traffic.kind == "newest" else "loaded"
        core.on_decision = say
        self._told: dict[str, str] = {}

    def __call__(self, version: ServableVersion) -> None:
        if version.state == "available":
            self._say(f"{self._word} {version.ref}")
        elif version.state == "failed" and self._told.get(version.name) != version.error:
            self._told[version.name] = version.error
            self._say(f"{version.ref} is not served: {' '.join(version.error.split())[:300]}")


def load_all(core: ServingCore) -> None:
    """Load every model once; UsageError names the first that cannot be served."""
    core.poll()
    for name, model in core.models.items():
        failed = [each.error for each in core.manager.versions(name) if each.state == "failed"]
        if core.manager.serving(name) is None:
            raise UsageError(f"cannot serve {name!r}: {model.problem or (failed or ['no version is there'])[-1]}")


def make_config(core: ServingCore, options: ServerOptions) -> uvicorn.Config:
    app = ServeApp(core, token=options.token, names=(options.host,), limits=options.limits)
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=30,
        server_header=False,
        **(options.tls.for_http() if options.tls is not None else {}),
    )


async def answer_requests(
    core: ServingCore,
    server: uvicorn.Server,
    listening: socket.socket,
    options: ServerOptions,
    greet: Callable[[], None] = lambda: None,
    report: Callable[[], None] = lambda: None,
) -> None:
    """Answer, look for new versions meanwhile, and report several times a second; `greet` once every port answers."""
    beside: list[asyncio.Task[None]] = []
    grpc = None
    try:
        if options.grpc_port is not None:
            place = address_of(options.host, options.grpc_port)
            grpc = await start_grpc(core, place, options.token, options.limits, options.tls)
        greet()  # connections over HTTP wait in the socket's queue until they are accepted
        announcing = announce_for_ever(core, address_to_ask(options, listening), options.poll)
        loops = (core.poll_for_ever(options.poll), report_for_ever(report), announcing)
        beside = [asyncio.create_task(each) for each in loops]
        await server.serve(sockets=[listening])
    finally:
        for task in beside:
            task.cancel()
        # Cancelled tasks must have ended before what they use is closed.
        await asyncio.gather(*beside, return_exceptions=True)
        if grpc is not None:
            await grpc.stop(GRACE)
        await core.close()
        core.shared_metrics.exchange(core.metrics)


def greeting(core: ServingCore, options: ServerOptions, listening: socket.socket) -> list[str]:
    """What is served and where, and a command that asks the first model."""
    address = address_to_ask(options, listening)
    served = [f"{name}:{core.manager.serving(name)}" for name in core.models] + [*core.composites]
    grpc = [] if options.grpc_port is None else [f"gRPC at {address_of(options.host, options.grpc_port)}"]
    return [f"serving {', '.join(served)} at {address}", *grpc, f"try: {curl_line(core, address, bool(options.token))}"]


def address_to_ask(options: ServerOptions, listening: socket.socket) -> str:
    scheme = "http" if options.tls is None else "https"
    return f"{scheme}://{address_of(options.host, listening.getsockname()[1])}"


def address_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def curl_line(core: ServingCore, address: str, guarded: bool) -> str:
    name = core.names()[0] if not core.composites else next(iter(core.composites))
    secret = ' -H "Authorization: Bearer $(cat TOKENFILE)"' if guarded else ""
    specs = core.specs(name)[1]
    if not specs:  # any Python object with predict(): only its author knows what it takes
        return f"curl -s{secret} {address}/predict/{name} -d 'INPUTS', where INPUTS is JSON that its predict() takes"
    body = example(specs).decode()
    if len(body) <= LONGEST_EXAMPLE:
        return f"curl -s{secret} {address}/predict/{name} -d '{body}'"
    return f"curl -s{secret} {address}/example/{name} | curl -s{secret} {address}/predict/{name} -d @-"
