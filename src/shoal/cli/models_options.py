"""Options, exit codes of errors and JSON output that all commands of `shoal models` share.

Exit codes: 0 done · 1 the registry is damaged, full or locked · 2 the command was wrong.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.models.registry import Registry

Models = Annotated[
    str | None,
    typer.Option("--models", metavar="DIR", help="Folder of the registry; else $SHOAL_MODELS, else ./models."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
Ref = Annotated[str, typer.Argument(metavar="MODEL", help="NAME (its newest version), NAME:VERSION or NAME@ALIAS.")]
EXIT_FAILED = 1


@contextmanager
def registry_errors() -> Iterator[None]:
    """One line on stderr for whatever is wrong, with its exit code."""
    from shoal.cli.errors import usage_errors
    from shoal.core.errors import LayoutError
    from shoal.models.errors import RegistryError

    with usage_errors():
        try:
            yield
        # Not the user's mistake, so the exit code is 1 and not 2.
        except (RegistryError, LayoutError) as error:
            typer.echo(f"shoal: {error}", err=True)
            raise typer.Exit(EXIT_FAILED) from None


def open_registry(models: str | None) -> "Registry":
    from shoal.models.registry import Registry

    return Registry(models)


def print_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())
