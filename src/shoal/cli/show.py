"""`shoal show`: the record of one run, drawn or as JSON."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.watch.record import Record


def show(
    run: Annotated[str | None, typer.Argument(help="The run's id; the newest run if left out.")] = None,
    runs: Annotated[str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Show what a run did: loss, time per phase, workers, bytes, warnings."""
    from shoal.cli.errors import usage_errors
    from shoal.core.record import runs_root
    from shoal.watch.console import open_console
    from shoal.watch.draw import draw_run
    from shoal.watch.record import Record, resolve

    with usage_errors():
        record = Record.open(resolve(runs_root(runs), run))
        if json:
            typer.echo(as_json(record))
        else:
            open_console().print(draw_run(record))


def as_json(record: "Record") -> str:
    """`{"info": …, "summary": …, "quantities": …, "workers": […]}`; `exit` is -1 while the run has not ended."""
    import msgspec

    from shoal.watch.quantities import quantities
    from shoal.watch.summary import known_summary
    from shoal.watch.worker import read_workers

    workers = read_workers(record)
    page = {
        "info": record.info,
        "summary": known_summary(record, workers),
        "quantities": quantities(workers),
        "workers": workers,
    }
    return msgspec.json.encode(page).decode()
