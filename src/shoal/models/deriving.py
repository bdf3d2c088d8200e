"""New models from those that a query finds: their runs again with other options, ranked by a metric.

    shoal models derive "where accuracy > 0.9 limit 2" --vary width=8,16 --vary lr=0.1,0.01 --by accuracy

    each version found  x  each combination  ->  shoal run SCRIPT --width 8 --lr 0.1 ...  ->  a version, ranked

The record of a version's run says what it was started with. Options are the script's own, so what a variation means
(a width, a depth, a learning rate) is up to the script; `plan`, `workers` and `seed` are those of `shoal run`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import msgspec

from shoal.core.errors import UsageError
from shoal.core.record import RunInfo, read_attempts
from shoal.models.registry import Registry
from shoal.models.version import ModelVersion

MOST = 256
"""Runs of one derivation."""
OWN = ("plan", "workers", "seed")
"""Options of `shoal run`; all others are the script's."""

Variation = dict[str, str]
StartRun = Callable[[Sequence[str], Path], str]
"""(words after `shoal`, folder) -> the run's id; empty if it failed."""


class DerivedRun(msgspec.Struct, frozen=True):
    """One run that is to be made: a version's own, with some options changed."""

    source: str
    changes: Variation
    words: list[str]
    """What follows `shoal`."""
    folder: str


class DerivedModel(msgspec.Struct, frozen=True):
    """What a run came to."""

    source: str
    changes: Variation
    run: str
    ref: str
    """Empty if the run failed or registered nothing."""
    value: float | None
    """Of the metric it is ranked by."""


def parse_variations(texts: Sequence[str]) -> list[Variation]:
    """Every combination of `lr=0.1,0.01` and `width=8,16`: four here."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        found = [value for value in values.split(",") if value]
        if not equals or not found or not name.replace("-", "").replace("_", "").isalnum() or name.startswith("-"):
            raise UsageError(f"--vary {text!r} is not NAME=VALUE,VALUE,...; write lr=0.1,0.01")
        if name in axes:
            raise UsageError(f"--vary {name} is given twice; write all its values in one")
        axes[name] = found
    if not axes:
        raise UsageError("nothing to vary; give --vary NAME=VALUE,VALUE,...")
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def plan_runs(versions: Sequence[ModelVersion], variations: Sequence[Variation], runs: Path) -> list[DerivedRun]:
    """The runs to be made, in order; UsageError if a version's run has no record, or there are too many."""
    if len(versions) * len(variations) > MOST:
        count = len(versions) * len(variations)
        raise UsageError(
            f"{len(versions)} versions in {len(variations)} variations are {count} runs; {MOST} are the most"
        )
    planned = []
    for version in versions:
        info = _record(version, runs)
        planned += [DerivedRun(version.ref, each, _words(info, each), info.folder) for each in variations]
    return planned


def _record(version: ModelVersion, runs: Path) -> RunInfo:
    try:
        info = read_attempts(runs / version.run)[-1] if version.run else None
    except (OSError, UsageError):
        info = None
    if info is None:
        raise UsageError(f"{version.ref} cannot be varied: its run {version.run or '(none)'} has no record in {runs}")
    if not info.folder or not (Path(info.folder) / info.script).is_file():
        raise UsageError(f"{version.ref} cannot be varied: its script {info.script} is not in {info.folder or 'place'}")
    return info


def _words(info: RunInfo, changes: Variation) -> list[str]:
    own = {"plan": info.plan, "workers": str(info.workers), "seed": str(info.seed)}
    own |= {name: value for name, value in changes.items() if name in OWN}
    words = ["run", *(word for name in OWN for word in (f"--{name}", own[name])), "--json", info.script]
    arguments = list(info.arguments)
    for name, value in changes.items():
        if name not in OWN:
            arguments = _set(arguments, f"--{name}", value)
    return [*words, *arguments]


def _set(arguments: list[str], option: str, value: str) -> list[str]:
    """With `option value`, in place of whatever value it had."""
    kept, skip = [], False
    for word in arguments:
        if skip:
            skip = False
        elif word == option:
            skip = True
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return [*kept, option, value]


def derive(registry: Registry, planned: Sequence[DerivedRun], by: str, start: StartRun) -> list[DerivedModel]:
    """Make the runs one after the other; the models they gave, best first, failed ones last.

    `by` is a metric, of which more is better, or one with a minus in front, of which less is: `-loss`.
    """
    metric, sign = by.removeprefix("-"), -1.0 if by.startswith("-") else 1.0
    found = []
    for each in planned:
        run = start(each.words, Path(each.folder))
        version = next((one for one in registry.list() if run and one.run == run), None)
        value = version.metrics.get(metric) if version else None
        found.append(DerivedModel(each.source, each.changes, run, version.ref if version else "", value))
    # False sorts before True, so models without a value come last whatever the sign.
    return sorted(found, key=lambda model: (model.value is None, -sign * (model.value or 0.0)))


def prune(registry: Registry, ranked: Sequence[DerivedModel], keep: int) -> list[str]:
    """Remove all but the best `keep` of what was derived; versions with an alias or in use stay."""
    if keep < 1:
        raise UsageError(f"--keep {keep}: at least the best one stays; give 1 or more")
    removed = []
    for model in ranked[keep:]:
        if model.ref:
            try:
                removed.append(registry.remove(model.ref).ref)
            except UsageError:
                continue
    return removed


def start_run(environment: Mapping[str, str], words: Sequence[str], folder: Path) -> str:
    """`shoal WORDS` in a process of its own; what it says while training goes to standard error."""
    command = [sys.executable, "-m", "shoal", *words]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        # With --json the summary is the last line of output.
        summary = msgspec.json.decode(done.stdout.strip().rpartition("\n")[2])
        return str(summary["run"]) if done.returncode == 0 else ""
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
