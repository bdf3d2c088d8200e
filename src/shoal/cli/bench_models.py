"""`shoal bench models`: accuracy against cost for every model of a table, with plots."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from shoal.bench.models import ModelFigures

TABLE = Path("examples/models")


def models(
    names: Annotated[str | None, typer.Option("--models", help="Names, separated by commas; else all.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the MNIST files; else synthetic data.")] = None,
    epochs: Annotated[int, typer.Option(min=0, help="Passes over the training samples.")] = 1,
    limit: Annotated[int, typer.Option(min=1, help="Training samples at most.")] = 2000,
    out: Annotated[Path, typer.Option(help="Folder for the table, the figures and the plots.")] = Path("bench-models"),
    table: Annotated[Path, typer.Option("--from", help="Folder whose __init__.py holds the TABLE of models.")] = TABLE,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Measure models: accuracy, parameters, FLOPs, memory and inference time."""
    from shoal.bench.models import measure
    from shoal.bench.models_load import choose, load_table, real_data
    from shoal.bench.models_report import as_json, explain, write_report
    from shoal.bench.scatter import check_scatters
    from shoal.cli.errors import usage_errors
    from shoal.core.errors import UsageError
    from shoal.watch.console import open_console

    with usage_errors():
        # First: without matplotlib the plots would fail after all models were measured.
        check_scatters()
        chosen = choose(load_table(table), names)
        if data is not None and not any(real_data(entry, data) for entry in chosen.values()):
            wanted = sorted({name for entry in chosen.values() for name in entry.files})
            raise UsageError(f"--data {data} holds no data of these models; it should hold {', '.join(wanted) or '-'}")
        rows = []
        for name, entry in chosen.items():
            typer.echo(f"measuring {name} …", err=True)
            rows.append(measure(name, entry, folder=data, epochs=epochs, limit=limit))
        files = write_report(out, rows, epochs, limit)
        if json:
            typer.echo(as_json(rows, epochs, limit).decode())
        else:
            open_console().print(_drawn(rows), explain(rows, epochs, limit), *files, sep="\n", highlight=False)


def _drawn(rows: "Sequence[ModelFigures]") -> "Table":
    from shoal.bench.models_report import COLUMNS, cells
    from shoal.watch.table import add_figures, plain_table

    table = plain_table()
    table.add_column(COLUMNS[0], no_wrap=True)
    table.add_column(COLUMNS[1], no_wrap=True)
    add_figures(table, *COLUMNS[2:])
    for row in rows:
        table.add_row(*cells(row))
    return table
