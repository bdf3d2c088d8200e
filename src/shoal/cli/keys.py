"""`shoal keys new`: a key pair by which a worker is known to others."""

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def keys() -> None:
    """Keys by which machines know each other."""


@app.command()
def new(
    file: Annotated[str | None, typer.Argument(help="Where to write; else ~/.config/shoal/keys.toml.")] = None,
) -> None:
    """Make a key pair in a file that only you can read. The public half is printed, the secret one never."""
    from pathlib import Path

    from shoal.cli.errors import usage_errors
    from shoal.cluster.links.keys import Keys
    from shoal.core.errors import UsageError

    with usage_errors():
        path = Path(file) if file is not None else Path.home() / ".config" / "shoal" / "keys.toml"
        if file is None:
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"cannot make {str(path.parent)!r}: {error.strerror}; name a file") from None
        pair = Keys.new()
        pair.write(path)
        typer.echo(f"written to {path}, for your eyes only; public key: {pair.public.decode()}")
