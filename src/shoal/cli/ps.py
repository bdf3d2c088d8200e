"""`shoal ps`: the live runs of this user on this host, with their workers and coordinator."""

from typing import Annotated

import typer


def ps(json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False) -> None:
    """Show the runs that live now: what every worker does, and since when."""
    import msgspec

    from shoal.cli.errors import usage_errors
    from shoal.watch.console import open_console
    from shoal.watch.draw.running import draw_running
    from shoal.watch.running import running

    with usage_errors():
        runs = running()
        if json:
            typer.echo(msgspec.json.encode({"runs": runs}).decode())
        else:
            open_console().print(draw_running(runs))
