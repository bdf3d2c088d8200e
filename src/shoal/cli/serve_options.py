"""The options of `shoal serve`, in the groups in which `shoal serve --help` shows them, and their values."""

import re
from dataclasses import dataclass
from typing import Annotated

import typer

from shoal.core.errors import UsageError
from shoal.core.units import TimeSpan

MODELS = "Models"
ADDRESS = "Address and access"
BATCHES = "Batches"
VERSIONS = "Versions"
CAPACITY = "Processes, machines and memory"

MOST_PROCESSES = 256
UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclass(frozen=True)
class ModelOptions:
    """Where models come from, beside their names."""

    follow: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Serve each checkpoint of the run; --rollout shadow unless given.",
            rich_help_panel=MODELS,
        ),
    ] = None
    runs: Annotated[
        str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.", rich_help_panel=MODELS)
    ] = None
    models: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Folder of the registry; else $SHOAL_MODELS, else ./models.", rich_help_panel=MODELS
        ),
    ] = None
    module: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="Gives the torch module of versions without program.",
            rich_help_panel=MODELS,
        ),
    ] = None
    combine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A>B", help="A model of models: one after the other, or A+B, mean.", rich_help_panel=MODELS
        ),
    ] = None
    trust_pt2: Annotated[
        bool,
        typer.Option("--trust-pt2", help="Read .pt2 files, which may run code: only your own.", rich_help_panel=MODELS),
    ] = False


@dataclass(frozen=True)
class AddressOptions:
    """Where requests are answered, and whose."""

    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Else 8080, or a free one.", rich_help_panel=ADDRESS)
    ] = None
    host: Annotated[
        str,
        typer.Option(
            help="Address to serve on; any other than this machine's own needs --token-file.", rich_help_panel=ADDRESS
        ),
    ] = "127.0.0.1"
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Requests must show its token; made if it is missing.", rich_help_panel=ADDRESS
        ),
    ] = None
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Encrypt: the server's certificate.", rich_help_panel=ADDRESS)
    ] = None
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The certificate's key.", rich_help_panel=ADDRESS)
    ] = None
    tls_ca: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Clients must show a certificate of this authority.", rich_help_panel=ADDRESS
        ),
    ] = None
    grpc_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Answer gRPC too, at this port; 0: a free one.", rich_help_panel=ADDRESS),
    ] = None


@dataclass(frozen=True)
class BatchOptions:
    """How requests are gathered and answered."""

    goal: Annotated[
        str, typer.Option(metavar="TIME", help="Latency that batches are sized for.", rich_help_panel=BATCHES)
    ] = "100ms"
    batch: Annotated[
        int,
        typer.Option(min=1, max=65536, help="Samples in a batch at most; 1: no batching.", rich_help_panel=BATCHES),
    ] = 1024
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Batches of a model at the same time.", rich_help_panel=BATCHES)
    ] = 1
    queue: Annotated[
        int, typer.Option(min=1, help="Samples of a model that may wait; more are refused.", rich_help_panel=BATCHES)
    ] = 1024
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Of requests that name none.", rich_help_panel=BATCHES)
    ] = "30s"
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Answers to keep for equal requests: 64MB; else none.", rich_help_panel=BATCHES
        ),
    ] = None


@dataclass(frozen=True)
class VersionOptions:
    """Which versions of a model answer."""

    keep: Annotated[
        int, typer.Option(min=1, max=64, help="Newest versions served beside each other.", rich_help_panel=VERSIONS)
    ] = 1
    poll: Annotated[
        str, typer.Option(metavar="TIME", help="Between two looks for new versions.", rich_help_panel=VERSIONS)
    ] = "1s"
    traffic: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="Versions that answer: newest, ab:20% (a comparison), bandit.",
            rich_help_panel=VERSIONS,
        ),
    ] = ""
    rollout: Annotated[
        str,
        typer.Option(
            metavar="STAGES",
            help="Try new versions: shadow,canary:5%; direct: at once, watched.",
            rich_help_panel=VERSIONS,
        ),
    ] = ""
    rule: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Of --rollout, else it goes back: requests>=100,errors<=1%,latency<=2.",
            rich_help_panel=VERSIONS,
        ),
    ] = ""


@dataclass(frozen=True)
class CapacityOptions:
    """What computes."""

    processes: Annotated[
        str,
        typer.Option(
            metavar="N|MIN:MAX",
            help="That answer; as many as the load needs; 0:4 ends idle ones, too.",
            rich_help_panel=CAPACITY,
        ),
    ] = "1"
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Loads that do not fit this are refused: 2GB.", rich_help_panel=CAPACITY),
    ] = None
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Machines that compute: ssh:A,B=2, ray, local; this one answers.",
            rich_help_panel=CAPACITY,
        ),
    ] = None
    replicas: Annotated[
        int | None, typer.Option(min=1, max=256, help="Of --on ray and local: machines.", rich_help_panel=CAPACITY)
    ] = None


def read_seconds(text: str, option: str) -> float:
    found = TimeSpan.parse(text).seconds
    if found <= 0:
        raise UsageError(f"{option} {text} is no time; write 100ms or 2s")
    return found


def read_process_range(text: str) -> tuple[int, int]:
    """`4` is 4 to 4, `1:4` is 1 to 4."""
    low, _, high = text.partition(":")
    if not (low.isdecimal() and (high or low).isdecimal() and 0 <= int(low) <= int(high or low) <= MOST_PROCESSES):
        raise UsageError(f"--processes {text} is no number of processes; write 4, or 1:4, up to {MOST_PROCESSES}")
    if not int(high or low):
        raise UsageError(
            f"--processes {text} starts no process; write 0:1 for one that ends while there are no requests"
        )
    return int(low), int(high or low)


def read_size(text: str | None, option: str) -> int | None:
    """`512MB`, `2GB` or bytes."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in UNITS:
        raise UsageError(f"{option} {text!r} is no size; write 512MB or 2GB")
    return int(float(found[1]) * UNITS[found[2]])
