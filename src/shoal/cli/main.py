"""`shoal`: the commands, gathered."""

import sys
from typing import Annotated, NoReturn

import typer

from shoal.cli import (
    bench,
    bench_models,
    compare,
    data,
    doctor,
    importing,
    join,
    keys,
    lab,
    models,
    plan,
    pool,
    probe,
    ps,
    replica,
    run,
    scale,
    serve,
    show,
    stop,
    switch,
    systems,
    watch,
)
from shoal.cli.errors import EXIT_USAGE
from shoal.core.version import __version__

app = typer.Typer(
    name="shoal",
    help="Trains one PyTorch model together on the machines and the network you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

WRONG_COMMAND: type[Exception] = typer.BadParameter.__mro__[1]
"""What the parser raises; typer exports only this child of it, and has kept it in more than one package."""


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
    """The options that every command shares."""


# What follows the script is the script's own, even if it looks like an option of ours.
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("join")(join.join)
app.command("data", context_settings={"allow_interspersed_args": False})(data.data)
app.add_typer(plan.app, name="plan", help="The plan language: its terms and named plans.")
app.add_typer(lab.app, name="lab", help="A bad network on one machine: draw it, enter it, measure it.")
app.add_typer(keys.app, name="keys", help="Keys by which machines know each other.")
app.add_typer(pool.app, name="pool", help="Machines that are kept warm between runs.")
app.command("doctor")(doctor.doctor)
app.command("probe")(probe.probe)
app.command("ps")(ps.ps)
app.command("stop")(stop.stop)
app.command("switch")(switch.switch)
# -2 is a number of workers here, not an option.
app.command("scale", context_settings={"ignore_unknown_options": True})(scale.scale)
app.command("show")(show.show)
app.command("watch")(watch.watch)
app.command("compare")(compare.compare)
app.add_typer(models.app, name="models", help="The registry of trained models: versions, lineage, aliases.")
app.command("serve")(serve.serve)
app.command("replica", hidden=True)(replica.replica)
app.command("import")(importing.import_)
app.command("systems")(systems.systems)
app.command("bench")(bench.bench)
app.command("bench-models", hidden=True)(bench_models.models)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point of the `shoal` script; an error in a command is reported on one line."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:2] == ["bench", "models"]:  # beside `bench SCRIPT`, which takes options of its own
        words = ["bench-models", *words[2:]]
    try:
        # Not standalone: wrong commands come as exceptions and are told on one line.
        code = app(words, prog_name="shoal", standalone_mode=False, obj=main)  # a pool runs commands, too
    except WRONG_COMMAND as error:
        _refuse(error)
        code = EXIT_USAGE
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(error: Exception) -> None:
    message, context = error.format_message(), error.ctx  # type: ignore[attr-defined]
    if "\n" in message:  # no command was given, and this is the help
        typer.echo(message)
    elif message:  # else the help was shown already
        command = context.command_path if context else "shoal"
        typer.echo(f"shoal: {message.rstrip('.')}; see '{command} --help'", err=True)


if __name__ == "__main__":
    main()
