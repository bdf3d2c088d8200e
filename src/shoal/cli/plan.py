"""`shoal plan list` and `shoal plan explain PLAN`: the words, and what a plan does, costs and cites."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.errors import usage_errors

app = typer.Typer(help="List the terms and named plans, or explain a plan.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_plans(json: Json = False) -> None:
    """Show every term and every named plan."""
    import msgspec

    terms, plans = _terms(), _plans()
    if json:
        typer.echo(msgspec.json.encode({"terms": terms, "plans": plans}))
        return
    _table("Terms", terms, ("text", "axis", "summary"))
    _table("Named plans", plans, ("name", "text", "cites", "note"))


@app.command("explain")
@usage_errors()
def explain_plan(
    plan: Annotated[str, typer.Argument(help="Terms, a named plan, or the path of a .toml file.")],
    workers: Annotated[
        int | None, typer.Option(help="Also say how payloads of N workers are aggregated, and what each sends.")
    ] = None,
    parameters: Annotated[int, typer.Option(help="Of the model, for --workers.")] = 1_000_000,
    cluster: Annotated[
        Path | None, typer.Option(help="What shoal probe wrote: also say how long its workers' transfers take.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A safetensors file or a run: sizes and bytes a step of its parameters, by part.")
    ] = None,
    computing: Annotated[
        list[str] | None,
        typer.Option(help="A run whose steps tell how long a batch computes: also say how long a step takes."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of one worker, where two runs of other batches were given.")
    ] = None,
    json: Json = False,
) -> None:
    """Show what a plan does, costs and cites."""
    import msgspec

    from shoal.groups.cluster_file import read_cluster
    from shoal.plan.explain import explain
    from shoal.plan.load import load

    shapes = _shapes(model) if model is not None else None
    measured = read_cluster(cluster) if cluster is not None else None
    seconds = _computing(computing or [], batch)
    explanation = explain(load(plan), workers, parameters, measured, shapes, seconds)
    typer.echo(msgspec.json.encode(explanation) if json else str(explanation))


def _shapes(model: str) -> dict[str, list[int]]:
    from shoal.core.record import runs_root
    from shoal.watch.model_shapes import read_shapes

    return read_shapes(model, runs_root(None))


def _computing(runs: list[str], batch: int | None) -> float | None:
    from shoal.core.errors import UsageError
    from shoal.core.record import runs_root
    from shoal.watch.computing import forecast_computing

    if batch is not None and not runs:
        raise UsageError(f"--batch {batch}: --computing names the runs that tell how long a batch takes")
    return forecast_computing(runs, runs_root(None), batch)


@app.command("groups")
@usage_errors()
def print_groups(
    plan: Annotated[str, typer.Argument(help="Terms, a named plan, or the path of a .toml file.")],
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Of the run.")],
    json: Json = False,
) -> None:
    """Write a plan as sizes of groups of workers and servers (SINGA's), for a plan file."""
    import msgspec

    from shoal.plan.group_sizes import groups_of, write_groups
    from shoal.plan.load import load

    sizes = groups_of(load(plan), workers)
    # The text ends with its own newline, because it is a file's content.
    typer.echo(msgspec.json.encode(sizes) if json else write_groups(sizes), nl=json)


def _terms() -> list[dict[str, str]]:
    from shoal.plan.registry import all_names

    return [_term(name) for name in all_names()]


def _term(name: str) -> dict[str, str]:
    from shoal.core.errors import UsageError
    from shoal.plan.explain import about
    from shoal.plan.registry import find_term

    try:
        kind = find_term(name)
    except UsageError as error:  # a broken package must not hide the other terms
        return {"name": name, "axis": "wire", "text": name, "summary": str(error)}
    assert kind is not None
    return {"name": name, "axis": kind.axis, "text": kind.usage(), "summary": about(kind).does}


def _plans() -> list[dict[str, str]]:
    from shoal.plan.presets import PRESETS

    return [
        {"name": name, "text": preset.text, "cites": preset.cites, "note": preset.note}
        for name, preset in PRESETS.items()
    ]


def _table(title: str, rows: list[dict[str, str]], columns: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=column in ("name", "axis"))
    for row in rows:
        # Text, so that brackets of a usage are not read as markup.
        table.add_row(*(Text(row[column]) for column in columns))
    Console().print(table)
