"""How a command refuses or is interrupted: one line on stderr, an exit code, no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from shoal.cli.ending import EXIT_INTERRUPTED
from shoal.core.errors import UsageError

# As click and most tools use it; 1 is for a run that failed.
EXIT_USAGE = 2


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a UsageError of the block or of the decorated command into `shoal: <message>` and exit code 2."""
    try:
        yield
    except UsageError as error:
        typer.echo(f"shoal: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


@contextmanager
def interruptible() -> Iterator[None]:
    """From the first moment to the last: Ctrl-C, SIGTERM and SIGHUP end the command with 130, not in a traceback."""
    from shoal.core.signals import as_interrupts

    try:
        with as_interrupts():
            yield
    except KeyboardInterrupt:
        typer.echo("shoal: interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
