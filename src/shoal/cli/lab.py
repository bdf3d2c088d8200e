"""`shoal lab show|shell|check`: draw a lab, open a shell on one of its hosts, compare it with its specification."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.errors import usage_errors
from shoal.core.errors import ShoalError, UsageError

if TYPE_CHECKING:
    from shoal.lab.check import LabCheckResult

app = typer.Typer(help="A bad network on one machine: draw it, enter it, measure it.", no_args_is_help=True)

CHECKED = "2 hosts, 100mbit, 5ms, 1%"
EXIT_OUTSIDE = 1

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="'4 hosts, 100mbit, 20ms', or the path of a .toml file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("show")
@usage_errors()
def show(spec: Spec) -> None:
    """Draw the hosts, their links, and what happens when."""
    from shoal.cli.lab_drawing import draw
    from shoal.lab.load import load
    from shoal.watch.console import open_console

    open_console().print(draw(load(spec)))


@app.command("shell")
@usage_errors()
def shell(
    spec: Spec,
    host: Annotated[int, typer.Option(min=0, help="The host to be on.")] = 0,
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- CMD…]", help="Instead of $SHELL.")] = None,
) -> None:
    """Open a shell, or run a command, on one host; the lab is gone afterwards."""
    from shoal.lab.lab import NetworkLab
    from shoal.lab.load import load

    with _failures(), _deaf(), NetworkLab(load(spec)) as lab:
        if not command:
            # A user in the shell needs their addresses to reach them.
            others = ", ".join(each.address for each in lab.hosts if each.rank != host) or "none"
            typer.echo(f"shoal: host {host}, other hosts: {others}; leave with 'exit'", err=True)
        try:
            code = lab.popen(host, command or [os.environ.get("SHELL", "/bin/sh")]).wait()
        except OSError as error:
            raise ShoalError(f"cannot run {(command or ['$SHELL'])[0]!r}: {error.strerror}") from None
    # As shells do it: 128 and the number of the signal.
    raise typer.Exit(code if code >= 0 else 128 - code)


@app.command("check")
@usage_errors()
def check(spec: Spec = CHECKED, json: Json = False) -> None:
    """Measure the lab itself against what was asked; exit code 1 if it does not keep its word."""
    import msgspec

    from shoal.lab.check import check as measure
    from shoal.lab.load import load

    wanted = load(spec)
    with _failures():
        results = list(measure(wanted))
    if json:
        checks = [{**msgspec.structs.asdict(each), "ok": each.ok} for each in results]
        typer.echo(msgspec.json.encode({"spec": str(wanted), "ok": all(r.ok for r in results), "checks": checks}))
    else:
        _table(results)
    raise typer.Exit(0 if all(each.ok for each in results) else EXIT_OUTSIDE)


@contextmanager
def _deaf() -> Iterator[None]:
    """The terminal's Ctrl-C is for the command alone. A handler, since the command would inherit SIG_IGN."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _failures() -> Iterator[None]:
    """Report a lab's failure on one line; the exit code is 1, because it is not the user's mistake."""
    try:
        yield
    except UsageError:
        raise
    except ShoalError as error:
        typer.echo(f"shoal: {error}", err=True)
        raise typer.Exit(EXIT_OUTSIDE) from None


def _table(results: "list[LabCheckResult]") -> None:
    from shoal.watch.console import open_console
    from shoal.watch.table import add_figures, plain_table

    table = plain_table()
    table.add_column("hosts")
    table.add_column("what")
    add_figures(table, "asked", "measured", "allowed")
    table.add_column("")
    for each in results:
        figures = [_figure(each.what, value) for value in (each.asked, each.measured, each.allowed)]
        pair, what = " – ".join(map(str, each.hosts)), each.what.replace("_", " ")
        table.add_row(pair, what, *figures[:2], f"± {figures[2]}", _word(each))
    open_console().print(table)


def _figure(what: str, value: float) -> str:
    shown = {"round_trip": f"{value * 1e3:.2f} ms", "rate": f"{value / 1e6:.2f} Mbit/s", "loss": f"{value:.3%}"}
    return shown[what]


def _word(result: "LabCheckResult") -> str:
    return "[green]ok[/]" if result.ok else "[red]outside[/]"
