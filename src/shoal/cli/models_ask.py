"""`shoal models sql` and `query`: questions to the index, read-only."""

from typing import Annotated, Any

import typer

from shoal.cli.models_options import Json, Models, open_registry, print_json, registry_errors


def sql(
    statement: Annotated[str, typer.Argument(metavar="'select ...'", help="One statement; see docs/registry.md.")],
    models: Models = None,
    json: Json = False,
) -> None:
    """Ask the index in SQL, read-only: table versions has a row for each, a column for each metric."""
    from shoal.models.queries import select

    with registry_errors():
        answer(select(open_registry(models), statement), json=json)


def query(
    clauses: Annotated[str, typer.Argument(metavar="'where ...'", help="What follows 'select * from versions'.")],
    models: Models = None,
    json: Json = False,
) -> None:
    """List versions that fit: `where accuracy > 0.97 and plan like '%dgc%' order by bytes`."""
    from shoal.cli.models_drawing import draw_versions
    from shoal.models.queries import query as ask

    with registry_errors():
        registry = open_registry(models)
        columns, rows = ask(registry, clauses)
        known = {version.ref: version for version in registry.list()}
        found = [known[row[columns.index("ref")]] for row in rows if row[columns.index("ref")] in known]
        if json:
            print_json(found)
        else:
            draw_versions(found, registry.root)


def answer(found: "tuple[list[str], list[tuple[Any, ...]]]", *, json: bool) -> None:
    """Rows as a table, or as JSON objects."""
    from shoal.cli.models_drawing import draw_rows

    columns, rows = found
    if json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        draw_rows(columns, rows)
