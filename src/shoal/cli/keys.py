"""`shoal keys new`: a key pair of a run or a machine; `shoal keys invite`: a key file for a machine that may join."""

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
    from shoal.core.errors import UsageError
    from shoal.transport.keys import CurveKeyPair

    with usage_errors():
        path = Path(file) if file is not None else Path.home() / ".config" / "shoal" / "keys.toml"
        if file is None:
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"cannot make {str(path.parent)!r}: {error.strerror}; name a file") from None
        pair = CurveKeyPair.new()
        pair.write(path)
        typer.echo(f"written to {path}, for your eyes only; public key: {pair.public.decode()}")


@app.command()
def invite(
    run_key: Annotated[str, typer.Argument(metavar="RUNKEY", help="The key file of the run, made by shoal keys new.")],
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where to write the invitation.")],
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Workers it is good for at a time.")] = 1,
) -> None:
    """Make a key file for one machine that may join the run; give it to no one else. It holds no secret of the run."""
    from pathlib import Path

    from shoal.cli.errors import usage_errors
    from shoal.membership import allow_list

    with usage_errors():
        allow_list.invite(Path(run_key), Path(out), workers)
        good = f"{workers} worker{'s' if workers > 1 else ''} of one machine"
        typer.echo(f"written to {out}: an invitation for {good}; it types shoal join HOST:PORT --key {out}")
        typer.echo(f"listed in {allow_list.allow_file(Path(run_key))}; remove its line there to withdraw it")
