"""`shoal watch`: a page in the browser that follows runs, or an exporter that hands them to another tool."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.watch.page.server import PageOptions

MISSING = "the page needs packages that are not installed ({}); install them with: pip install 'shoal[dashboard]'"


def watch(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="RUN…", help="Ids or folders; all runs if left out.")
    ] = None,
    runs: Annotated[str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve on; any other than this machine's own needs --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Else 8765, or a free one.")] = None,
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Holds the token; made if it is missing. Else a new token.")
    ] = None,
    export: Annotated[
        str | None, typer.Option(metavar="KIND[=URI]", help="No page: hand the runs to mlflow or otel instead.")
    ] = None,
) -> None:
    """Watch runs in the browser: live and past, side by side, and where their time goes."""
    from shoal.cli.errors import interruptible, usage_errors
    from shoal.core.record import runs_root
    from shoal.watch.record import resolve

    with usage_errors(), interruptible():
        root = runs_root(runs)
        only = [resolve(root, name) for name in names] if names else None
        if export is not None:
            from shoal.watch.export.follow import export_runs

            # Without names the newest run.
            export_runs(export, only or [resolve(root)], lambda line: typer.echo(f"shoal: {line}", err=True))
            return
        serve_page(page_options(root, only, host, port, token_file))


def page_options(root: Path, only: list[Path] | None, host: str, port: int | None, file: str | None) -> "PageOptions":
    """Everything checked before anything is served."""
    from shoal.core.errors import UsageError
    from shoal.core.http_access import is_loopback, new_token, read_token

    try:
        from shoal.watch.page.server import PageOptions
    except ModuleNotFoundError as error:
        raise UsageError(MISSING.format(error.name)) from None
    if not is_loopback(host) and file is None:
        raise UsageError(
            f"--host {host} lets other machines ask for the page; keep its token in a file: --token-file FILE"
        )
    token = read_token(Path(file).expanduser()) if file is not None else new_token()
    return PageOptions(root, only, token, host, port)


def serve_page(options: "PageOptions") -> None:
    from shoal.core.http_access import is_loopback
    from shoal.watch.page.server import serve

    def say(address: str) -> None:
        typer.echo(f"shoal: watch at {address}", err=True)
        if not is_loopback(options.host):
            note = "the page is not encrypted: on a network that is not yours, use ssh -L instead of --host"
            typer.echo(f"shoal: note: {note}", err=True)

    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        serve(options, say)
