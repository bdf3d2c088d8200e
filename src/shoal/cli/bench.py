"""`shoal bench`: plans and peers on the same script, in turns, with a report.

Exit codes: 0 done · 1 some run failed · 2 the command was wrong · 130 interrupted.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from shoal.bench.session import BenchSetting

FEW_SEEDS = 3
"""Below this many seeds, a time to accuracy says more of luck than of a plan."""


@dataclass(frozen=True)
class BenchOptions:
    """What is measured, and how."""

    plans: Annotated[
        list[str] | None, typer.Option(help="Plans, separated by ';' (or ',' between whole plans); may be repeated.")
    ] = None
    peers: Annotated[str, typer.Option(help="Of ddp, ddp-fp16, ddp-powersgd, ddp-localsgd.")] = ""
    workers: Annotated[str, typer.Option("--workers", "-w", help="One number, or several for scaling: 1,2,4.")] = "2"
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each contestant.")] = 5
    until: Annotated[str | None, typer.Option(help="Train to a goal, and time it: 'accuracy>=0.97'.")] = None
    seeds: Annotated[
        bool | None, typer.Option("--seeds/--one-seed", help="Another seed in every repeat; as default with --until.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Of the first repeat.")] = 0
    price: Annotated[float | None, typer.Option(min=0.0, help="Per core and hour: adds the modelled cost.")] = None
    lab: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Emulated hosts: '4 hosts, 100mbit, 20ms' or a TOML file.")
    ] = None
    out: Annotated[str | None, typer.Option(help="A new folder for records and report; made up if left out.")] = None


@with_option_groups
def bench(
    script: Annotated[str, typer.Argument(help="The training script.", show_default=False)],
    options: BenchOptions,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="-- ARGS", help="Passed to the script.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Last line of output: the report as JSON.")] = False,
) -> None:
    """Measure plans, and PyTorch's own tools, against each other on SCRIPT."""
    from shoal.cli.errors import interruptible, usage_errors

    with usage_errors(), interruptible():
        raise typer.Exit(measure(prepare(script, arguments or [], options), json))


def prepare(script: str, arguments: list[str], options: BenchOptions) -> "BenchSetting":
    """Check everything that can be wrong before hours are spent, and make the folder."""
    from shoal.bench.draw import check_available
    from shoal.bench.session import open_folder

    setting = make_setting(script, arguments, options)
    # Drawing comes last; that it is impossible must be said before hours of runs.
    check_available()
    if setting.until and setting.repeats < FEW_SEEDS:
        told = f"{setting.repeats} repeats say little of time to {setting.until}; use {FEW_SEEDS} or more"
        typer.echo(f"shoal: note: {told}", err=True)
    # Last, so that a refused command leaves nothing behind.
    open_folder(setting.out)
    return setting


def make_setting(script: str, arguments: list[str], options: BenchOptions) -> "BenchSetting":
    """Return what the options come to; UsageError names the first that cannot be."""
    from pathlib import Path

    from shoal.bench.contestant import contestants
    from shoal.bench.session import BenchSetting, worker_counts
    from shoal.cli.run_checks import check_lab
    from shoal.core.errors import UsageError
    from shoal.core.goal import TrainingGoal
    from shoal.core.ids import new_id

    if not Path(script).is_file():
        raise UsageError(f"no script {script!r} here; give the path of a Python file")
    counts = worker_counts(options.workers)
    hosts = check_lab(options.lab, max(counts)) if options.lab is not None else None
    goal = TrainingGoal.parse(options.until) if options.until is not None else None
    # Without plans and peers the default plan is measured; with peers alone, only they are.
    given = options.plans if options.plans is not None or options.peers else ["allreduce"]
    return BenchSetting(
        script=script,
        arguments=tuple(arguments),
        contestants=tuple(contestants(given or [], options.peers, list(counts))),
        workers=counts,
        repeats=options.repeats,
        until=goal,
        seed=options.seed,
        other_seeds=goal is not None if options.seeds is None else options.seeds,
        price=options.price,
        lab=options.lab or "",
        replayed=hosts is not None and hosts.compute == "replay",
        out=Path(options.out or new_id("bench")).absolute(),
    )


def measure(setting: "BenchSetting", json: bool) -> int:
    """Run everything, write the report, show it; returns the exit code."""
    import msgspec

    from shoal.bench.report_files import write_report
    from shoal.bench.session import BenchSession
    from shoal.bench.table import ending
    from shoal.cli.ending import shown
    from shoal.watch.console import open_console

    report = BenchSession(setting).run()
    write_report(report, setting.out)
    if json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        open_console().print(ending(report.rows, report.scaling, report.until, report.price is not None))
    typer.echo(f"shoal: the report is in {shown(setting.out)} (bench.md, bench.json, figures, runs)", err=True)
    return report.exit
