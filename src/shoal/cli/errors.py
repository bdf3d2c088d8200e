"""How a command refuses: the message on one line of stderr, exit code 2, no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from shoal.core.errors import UsageError

EXIT_USAGE = 2


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a UsageError of the block or of the decorated command into `shoal: <message>` and exit code 2."""
    try:
        yield
    except UsageError as error:
        typer.echo(f"shoal: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
