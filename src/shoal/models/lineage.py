"""The lineage of a run, read from its record: attempts, plans, members, and what the ledger says of its samples."""

import re
from pathlib import Path

import msgspec

from shoal.core.errors import ShoalError
from shoal.core.events import WorkerStarted
from shoal.core.ledger import SamplesTaken, committed, prove, read_ledger
from shoal.core.record import RunInfo, fingerprint_of, read_attempts
from shoal.models.version import Lineage, PlanUse

PASSES = 1000
"""Passes of the ledger that a lineage lists at most: the last ones."""
FIRST_LINE = 64 << 10
"""Bytes in which a worker's first event must stand."""
_FIELDS = ("epoch", "loader", "number", "samples", "missing", "duplicate", "dropped", "finished")


def read_lineage(directory: Path, *, step: int, epoch: int, data: str = "", parent: str = "") -> Lineage:
    """Of the run in `directory`, which may still be under way."""
    attempts = read_attempts(directory)
    first, last = attempts[0], attempts[-1]
    passes = _passes(directory)
    return Lineage(
        run=last.run,
        plan=last.plan,
        plans=[PlanUse(info.step, info.plan) for info in attempts],
        step=step,
        epoch=epoch,
        samples=sum(int(each["samples"]) for each in passes),
        seed=first.seed,
        workers=last.workers,
        script=Path(last.script).name,
        code=_code(last),
        data=data,
        ledger=passes[-PASSES:],
        members=_members(directory),
        parent=parent,
        versions=last.versions,
    )


def _code(info: RunInfo) -> str:
    """As it was when the run began, where the record has it."""
    if info.fingerprint:
        return info.fingerprint
    try:
        return fingerprint_of(Path(info.folder) / info.script)
    except OSError:
        return ""


def _passes(directory: Path) -> list[dict[str, int | bool]]:
    try:
        entries = list(read_ledger(directory))
    except (OSError, ShoalError, ValueError):
        return []
    steps: dict[tuple[int, int, int], tuple[int, int]] = {}
    for entry in committed(entries):
        if isinstance(entry, SamplesTaken):
            begin, end = steps.get(entry.key, (entry.first, entry.last))
            steps[entry.key] = min(begin, entry.first), max(end, entry.last)
    passes = []
    for proof in prove(entries):
        first, last = steps[(proof.epoch, proof.loader, proof.number)]
        fields: dict[str, int | bool] = {
            ("pass" if name == "number" else name): getattr(proof, name) for name in _FIELDS
        }
        passes.append(fields | {"first_step": first, "last_step": last})
    return passes


def _members(directory: Path) -> list[dict[str, str | int]]:
    """Everybody whose record is here: machines that joined keep theirs to themselves."""
    found: list[dict[str, str | int]] = []
    paths = (path for path in directory.glob("worker-*.jsonl") if path.stem.removeprefix("worker-").isdecimal())
    for path in sorted(paths, key=lambda path: int(path.stem.removeprefix("worker-"))):
        try:
            with path.open("rb") as file:
                started = msgspec.json.decode(file.readline(FIRST_LINE), type=WorkerStarted)
        except (OSError, msgspec.DecodeError):
            continue
        found.append({"worker": started.rank, "host": started.host, "device": started.device})
    return found


def script_name(script: str) -> str:
    """The name of the model a script trains, if it gives none: `Train MNIST.py` is `train-mnist`."""
    stem = re.sub(r"[^a-z0-9._-]+", "-", Path(script).stem.lower()).strip("-._")
    # Names of models are ids, of at most 64 characters.
    return stem[:64] or "model"
