"""`shoal`: the commands, gathered."""

import sys
from typing import Annotated

import typer

from shoal.cli import compare, plan, run, show, systems
from shoal.core.version import __version__

app = typer.Typer(
    name="shoal",
    help="Trains one PyTorch model together on the machines and the network you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What every command shares."""


app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.add_typer(plan.app, name="plan", help="The plan language: its terms and named plans.")
app.command("show")(show.show)
app.command("compare")(compare.compare)
app.command("systems")(systems.systems)


def main() -> None:
    """Entry point of the `shoal` script."""
    app()
    sys.exit(0)


if __name__ == "__main__":
    main()
