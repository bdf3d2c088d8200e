"""`shoal models derive`: train variations of the models that a query finds, and rank them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.models_options import EXIT_FAILED, Json, Models, open_registry, print_json, registry_errors

if TYPE_CHECKING:
    from shoal.models.deriving import DerivedModel


def derive(
    clauses: Annotated[str, typer.Argument(metavar="'where ...'", help="Which versions, as in `query`.")],
    vary: Annotated[list[str], typer.Option(metavar="NAME=A,B", help="An option of the script, and values for it.")],
    by: Annotated[str, typer.Option(metavar="METRIC", help="Rank by it: more is better; of -loss less is.")],
    keep: Annotated[int | None, typer.Option(metavar="N", help="Remove all derived models but the best N.")] = None,
    runs: Annotated[str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands, and run nothing.")] = False,
    models: Models = None,
    json: Json = False,
) -> None:
    """Run the trainings of versions again with other options, and rank the new models by a metric."""
    import shlex
    from functools import partial

    from shoal.core.errors import UsageError
    from shoal.core.record import RUNS_VARIABLE, runs_root
    from shoal.models import deriving
    from shoal.models.queries import query
    from shoal.models.registry_places import MODELS_VARIABLE

    with registry_errors():
        registry = open_registry(models)
        # Checked before hours of training, not after.
        if keep is not None and keep < 1:
            raise UsageError(f"--keep {keep}: at least the best one stays; give 1 or more")
        columns, rows = query(registry, clauses)
        versions = [registry.get(row[columns.index("ref")]) for row in rows]
        if not versions:
            raise UsageError(f"no version fits {clauses!r}; 'shoal models query' shows which do")
        folder = runs_root(runs).absolute()
        planned = deriving.plan_runs(versions, deriving.parse_variations(vary), folder)
        if dry_run:
            for each in planned:
                typer.echo(f"cd {shlex.quote(each.folder)} && shoal {shlex.join(each.words)}")
            return
        # the runs are made where their scripts are, and belong to this registry and these runs all the same
        places = {MODELS_VARIABLE: str(registry.root), RUNS_VARIABLE: str(folder)}
        ranked = deriving.derive(registry, planned, by, partial(deriving.start_run, places))
        removed = deriving.prune(registry, ranked, keep) if keep is not None else []
        if json:
            print_json({"ranked": ranked, "removed": removed})
        else:
            draw_ranked(ranked, by.removeprefix("-"), removed)
        if not any(model.ref for model in ranked):
            raise typer.Exit(EXIT_FAILED)


def draw_ranked(ranked: "list[DerivedModel]", metric: str, removed: list[str]) -> None:
    from shoal.cli.models_drawing import draw_rows

    rows: list[tuple[Any, ...]] = []
    for place, model in enumerate(ranked, 1):
        changes = " ".join(f"{name}={value}" for name, value in model.changes.items())
        value = "" if model.value is None else f"{model.value:.4g}"
        ref = f"{model.ref} (removed)" if model.ref in removed else model.ref or "failed"
        rows.append((place, ref, value, model.source, changes, model.run))
    draw_rows(["", "model", metric, "from", "changes", "run"], rows)
