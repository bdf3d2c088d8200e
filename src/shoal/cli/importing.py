"""`shoal import`: the tensors of a legacy `.pt` file as safetensors, read by a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import shoal

SECONDS = 600.0


def import_(
    source: Annotated[str, typer.Argument(metavar="FILE.pt", help="What torch.save wrote.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="OUT.safetensors", help="A file to make.", show_default=False)],
) -> None:
    """Turn a legacy .pt file into safetensors, without running anything that stands in it."""
    from shoal.cli.errors import usage_errors
    from shoal.core.errors import UsageError

    with usage_errors():
        if not Path(source).is_file():
            raise UsageError(f"no file {source!r} here; give one that torch.save wrote")
        if Path(target).exists():
            raise UsageError(f"{target!r} is there already; give a name that is free")
        if not Path(target).absolute().parent.is_dir():
            raise UsageError(f"no folder for {target!r}; make it first")
        typer.echo(f"shoal: {_import(Path(source), Path(target).absolute())} tensors in {target}", err=True)


def _import(source: Path, target: Path) -> str:
    """Let the file be written under another name, and give it its own when all of it is there."""
    import tempfile

    from shoal.core.disk import DISK
    from shoal.core.errors import UsageError

    try:
        file, unfinished = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(file)
    except OSError as error:
        raise UsageError(f"cannot write in {str(target.parent)!r}: {error.strerror}; name another folder") from None
    try:
        number = _convert(str(source), unfinished)
        # The mask can only be read by setting it.
        mask = os.umask(0)
        os.umask(mask)
        Path(unfinished).chmod(0o666 & ~mask)  # as any file the user makes
        Path(unfinished).replace(target)
        DISK.sync_folder(target.parent)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return number


def _convert(source: str, target: str) -> str:
    from shoal.core.errors import UsageError

    words = [sys.executable, "-m", "shoal.train.checkpoint.legacy", str(Path(source).absolute()), target]
    # nothing of ours goes along: the environment may hold secrets
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    kept["PYTHONPATH"] = str(Path(next(iter(shoal.__path__))).parent.absolute())
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=kept,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{source!r} took more than {SECONDS:.0f} s and was given up") from None
    said = [line.removeprefix("shoal: ") for line in done.stderr.strip().splitlines()]
    if done.returncode:
        raise UsageError(said[-1] if said else f"{source!r} ended the process that read it ({done.returncode})")
    for line in said:
        typer.echo(f"shoal: {line}", err=True)
    return done.stdout.strip()
