"""Opens the record of a run: its folder and lock, what the run was started with, and where a resumed one begins."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.cli.options import AUTO, RunOptions

if TYPE_CHECKING:
    from shoal.core.record import RunInfo
    from shoal.lab.spec import LabSpec
    from shoal.membership.invitation import RunBrief
    from shoal.plan.plan import Plan


class OpenedRun(NamedTuple):
    """What the record says of the attempt that begins, and where it begins."""

    info: "RunInfo"
    lab: "LabSpec | None"
    checkpoint: Path | None


def open_run(directory: Path, info: "RunInfo", attempts: "Sequence[RunInfo]", lab: "LabSpec | None") -> OpenedRun:
    """Open the record of a run, or of one that goes on after `attempts`, and keep other commands from it."""
    import msgspec

    from shoal.cli.resume import pick, survived
    from shoal.core.lock import hold

    if not attempts:
        open_record(directory, info)  # first: it makes the folder that the lock is in
        hold(directory, info.run)
        return OpenedRun(info, lab, None)
    hold(directory, info.run)  # first: another command may still write checkpoints
    lab = survived(lab, directory) if lab is not None else None
    checkpoint = pick(directory, info.run)
    step = int(checkpoint.name.rpartition("-")[2]) if checkpoint is not None else 0
    info = msgspec.structs.replace(info, attempt=len(attempts) + 1, step=step)
    open_record(directory, info)
    return OpenedRun(info, lab, checkpoint)


def describe(options: RunOptions, run: str, plan: "Plan", workers: int, lab: str) -> "RunInfo":
    """Describe the run's start for its record, without the environment, which may hold secrets."""
    import sys

    from shoal.core import record

    return record.describe_run(
        run=run,
        plan=str(plan),
        workers=workers,
        seed=options.seed or 0,
        script=options.script or "",
        command=["shoal", *sys.argv[1:]],
        lab=lab,
        arguments=list(options.arguments),
        folder=str(Path.cwd()),
        fingerprint=record.fingerprint_of(Path(options.script or "")),
        checkpoint=options.checkpoint or AUTO,
        data_servers=options.data_servers or "",
    )


def open_record(directory: Path, info: "RunInfo") -> None:
    """Make the run's folder with what the run was started with, or add to it that the run goes on."""
    from shoal.core import record
    from shoal.core.errors import UsageError

    try:
        if info.attempt == 1:
            record.write_info(directory, info)
        else:
            record.write_attempt(directory, info)
            # It tells how the last attempt ended, and would stand for this one if it is killed.
            (directory / "summary.json").unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write the record in {str(directory)!r}: {error.strerror}; choose another folder with --runs"
        ) from None


def open_joined(brief: "RunBrief", slots: tuple[int, ...], runs: str | None) -> Path:
    """Open the record of a joined machine's part: `runs/<run>`, or with a number after it where that name is taken."""
    import itertools
    import sys

    from shoal.core import record
    from shoal.core.lock import hold

    root = record.runs_root(runs).absolute()
    # A machine may join one run several times, and each part has a record of its own.
    names = itertools.chain([brief.run], (f"{brief.run[:58]}-{n}" for n in itertools.count(2)))
    name = next(name for name in names if not (root / name).exists())
    info = record.describe_run(
        run=name,
        plan=brief.plan,
        workers=len(slots),
        seed=brief.seed,
        script=brief.name,
        command=["shoal", *sys.argv[1:]],
        arguments=list(brief.arguments),
        folder=str(Path.cwd()),
        checkpoint=brief.checkpoint,
        slots=list(slots),
    )
    directory = record.run_dir(root, name)
    open_record(directory, info)
    hold(directory, name)
    return directory
