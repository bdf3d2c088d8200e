"""The files of a run's record, and the content of the first and last of them.

runs/<id>/run.json          RunInfo: written before the first step
runs/<id>/attempt-<n>.json  RunInfo again, when the run is continued for the n-th time (from 2)
runs/<id>/worker-<r>.jsonl  events of worker r (journal.py)
runs/<id>/launcher.jsonl    events of a lab, and workers that were lost
runs/<id>/summary.json      Summary: written at the end
"""

import hashlib
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec

from shoal.core.disk import DISK
from shoal.core.durable import write_file
from shoal.core.errors import UsageError
from shoal.core.ids import check_id
from shoal.core.version import __version__

RUNS_VARIABLE = "SHOAL_RUNS"
PRIVATE = 0o600
"""Mode of files that hold the script's arguments, which may be tokens and passwords."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True, rename={"slots": "seats"}):
    """The description that a run was started with."""

    run: str
    plan: str
    workers: int
    seed: int
    script: str
    command: list[str]
    started: float
    versions: dict[str, str]
    machine: dict[str, str | int]
    lab: str = ""
    """The lab the workers were in, as text; empty: none."""
    arguments: list[str] = []
    """The script's own."""
    folder: str = ""
    """The folder in which the command was given."""
    fingerprint: str = ""
    """SHA-256 of the script's text."""
    checkpoint: str = "auto"
    attempt: int = 1
    step: int = 0
    """Of a continued run: how many steps it had made when it went on."""
    data_servers: str = ""
    """What `--data-servers` was given."""
    slots: list[int] = []
    """Of the workers, if they are a joined machine's; else they are counted from 0."""


class StepPhases(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds per step, over workers and steps."""

    load: float = 0.0
    forward_backward: float = 0.0
    exchange_wait: float = 0.0
    encode: float = 0.0
    update: float = 0.0
    other: float = 0.0


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run: the object that `shoal run --json` prints."""

    run: str
    dir: str
    plan: str
    workers: int
    steps: int
    samples: int
    seconds: float
    """Training only: the longest of the workers' summed step times."""
    samples_per_second: float
    bytes_raw: int
    """float32 bytes of all gradients or updates offered for exchange, summed over workers."""
    bytes_sent: int
    """Bytes of the encoded payloads that stand for them."""
    bytes_wire: int
    """Bytes put on sockets; 0 inside one host's memory."""
    metrics: dict[str, float]
    phases: StepPhases
    exit: int
    losses: int = 0
    """How often a worker was lost, in all attempts."""
    quarantined: dict[str, str] = {}
    """Workers that were not started again, and why, in the last attempt."""


def runs_root(given: str | None = None) -> Path:
    """Return the folder of runs: the given one, or $SHOAL_RUNS, or ./runs."""
    return Path(given or os.environ.get(RUNS_VARIABLE) or "runs")


def run_dir(root: Path, run: str) -> Path:
    """Return the folder of run `run`; refuse anything that is not an id."""
    return root / check_id(run, "run")


def worker_file(directory: Path, rank: int) -> Path:
    return directory / f"worker-{rank}.jsonl"


def launcher_file(directory: Path) -> Path:
    return directory / "launcher.jsonl"


def write_info(directory: Path, info: RunInfo) -> None:
    """Make the run's folder and its first file; an id is used once."""
    try:
        # fails for the second of two runs that choose one id at the same time
        directory.mkdir(parents=True, exist_ok=False)
    except FileExistsError:
        raise UsageError(f"run {info.run!r} exists already in {directory.parent}; choose another --name") from None
    write_file(directory / "run.json", msgspec.json.format(msgspec.json.encode(info)), mode=PRIVATE)
    DISK.sync_folder(directory.parent)  # the folder's own name, which `write_file` has not made durable


def attempt_file(directory: Path, attempt: int) -> Path:
    """Of a run that was continued; attempts count from 1, and the first is in run.json."""
    return directory / f"attempt-{attempt}.json"


def write_attempt(directory: Path, info: RunInfo) -> None:
    """Add to the record of a run that it goes on."""
    write_file(attempt_file(directory, info.attempt), msgspec.json.format(msgspec.json.encode(info)), mode=PRIVATE)


def read_attempts(directory: Path) -> list[RunInfo]:
    """Return the descriptions of the run's start, and of each time it was resumed, in order."""
    attempts = [read_info(directory)]
    # Attempts are numbered without gaps, because each holds the run's lock while it writes its own.
    while (path := attempt_file(directory, len(attempts) + 1)).exists():
        try:
            attempts.append(msgspec.json.decode(path.read_bytes(), type=RunInfo))
        except ValueError as error:
            raise UsageError(f"{path} is not a run's record: {error}") from None
    return attempts


def fingerprint_of(script: Path) -> str:
    """SHA-256 of a script's text."""
    return hashlib.sha256(script.read_bytes()).hexdigest()


def read_info(directory: Path) -> RunInfo:
    try:
        return msgspec.json.decode((directory / "run.json").read_bytes(), type=RunInfo)
    except FileNotFoundError:
        raise UsageError(
            f"no run {directory.name!r} in {directory.parent}; 'shoal show' without a name shows the newest"
        ) from None
    except ValueError as error:
        raise UsageError(f"{directory / 'run.json'} is not a run's record: {error}") from None


class RunDetails(TypedDict, total=False):
    """Fields of `RunInfo` that have defaults and are known when a run begins."""

    lab: str
    arguments: list[str]
    folder: str
    fingerprint: str
    checkpoint: str
    data_servers: str
    slots: list[int]


def describe_run(
    *, run: str, plan: str, workers: int, seed: int, script: str, command: Sequence[str], **details: Unpack[RunDetails]
) -> RunInfo:
    """Describe a run that begins now, on this machine, with these versions."""
    return RunInfo(
        run=run,
        plan=plan,
        workers=workers,
        seed=seed,
        script=script,
        command=list(command),
        started=time.time(),
        versions=versions(),
        machine=machine(),
        **details,
    )


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    import torch

    return {"shoal": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}


def machine() -> dict[str, str | int]:
    """Describe the machine, so that a reader can judge timings: cores, memory, processor, kernel."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_mib": memory,
        "executable": Path(sys.executable).name,
    }


def _processor() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()
