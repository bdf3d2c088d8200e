"""`shoal compare`: several runs side by side, the first as the measure."""

from typing import Annotated

import typer


def compare(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids or folders; the first is the measure.")],
    runs: Annotated[str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Compare runs: time, samples per second, bytes and metrics, with the ratio to the first."""
    import msgspec

    from shoal.cli.errors import usage_errors
    from shoal.core.record import runs_root
    from shoal.watch.compare import compare_runs, draw_comparison
    from shoal.watch.console import open_console
    from shoal.watch.record import RunRecord, resolve

    with usage_errors():
        compared = compare_runs([RunRecord.open(resolve(runs_root(runs), name)) for name in names])
        if json:
            typer.echo(msgspec.json.encode({"runs": compared}).decode())
        else:
            open_console().print(draw_comparison(compared))
