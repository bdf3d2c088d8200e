"""`shoal models push` and `pull`: versions from one registry to another: in a folder, over ssh, or MLflow's.

`answer` and `receive` are the far ends of an ssh connection and hidden from the help.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.models_options import Models, open_registry, registry_errors

if TYPE_CHECKING:
    from shoal.models.registry import Registry


def push(
    refs: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Versions to copy.")],
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="The other registry, ssh://HOST/DIR, or mlflow[=URI].")
    ],
    aliases: Annotated[bool, typer.Option("--aliases", help="Set their aliases there too.")] = False,
    models: Models = None,
) -> None:
    """Copy versions to another registry; blobs that are there already are not copied."""
    from shoal.models.mlflow import is_mlflow

    with registry_errors():
        if is_mlflow(to):
            push_to_mlflow(open_registry(models), to, refs)
        elif is_ssh(to):
            push_over_ssh(open_registry(models), to, refs, aliases=aliases)
        else:
            copy_versions(open_registry(models), open_registry(to), refs, aliases=aliases)


def pull(
    refs: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Versions to copy.")],
    source: Annotated[
        str, typer.Option("--from", metavar="DIR", help="The other registry, ssh://HOST/DIR, or mlflow[=URI].")
    ],
    aliases: Annotated[bool, typer.Option("--aliases", help="Set their aliases here too.")] = False,
    models: Models = None,
) -> None:
    """Copy versions from another registry to this one."""
    from shoal.models.mlflow import is_mlflow

    with registry_errors():
        if is_mlflow(source):
            pull_from_mlflow(open_registry(models), source, refs)
        elif is_ssh(source):
            pull_over_ssh(open_registry(models), source, refs, aliases=aliases)
        else:
            copy_versions(open_registry(source), open_registry(models), refs, aliases=aliases)


def answer_pipe(models: Models = None) -> None:
    """Send the versions and blobs that are asked for on standard input: the remote side of `pull --from ssh://...`."""
    import sys

    from shoal.models.remote import PipePair, answer_requests

    with registry_errors():
        answer_requests(open_registry(models), PipePair(sys.stdin.buffer, sys.stdout.buffer))


def receive_pipe(
    refs: Annotated[list[str], typer.Argument(metavar="MODEL...")],
    aliases: Annotated[bool, typer.Option("--aliases")] = False,
    models: Models = None,
) -> None:
    """Ask on standard output for versions and store them: the far end of `push --to ssh://...`."""
    import sys

    from shoal.models.remote import PipePair, RemoteSource, receive

    with registry_errors():
        source = RemoteSource(PipePair(sys.stdin.buffer, sys.stdout.buffer))
        for line in receive(open_registry(models), source, refs, aliases=aliases):
            # Standard output is the connection.
            typer.echo(line, err=True)


def is_ssh(url: str) -> bool:
    return url.startswith("ssh://")


def pull_over_ssh(registry: "Registry", url: str, refs: list[str], *, aliases: bool) -> None:
    from shoal.models.remote import RemoteSource, connected, receive

    with connected(url, "answer") as pipes:
        for line in receive(registry, RemoteSource(pipes), refs, aliases=aliases):
            typer.echo(line)


def push_over_ssh(registry: "Registry", url: str, refs: list[str], *, aliases: bool) -> None:
    from shoal.models.remote import answer_requests, connected

    # Found here first, so that a wrong name is told before a connection is made.
    chosen = [registry.get(ref).ref for ref in refs]
    with connected(url, "receive", *chosen, *(["--aliases"] if aliases else [])) as pipes:
        answer_requests(registry, pipes)


def copy_versions(source: "Registry", target: "Registry", refs: list[str], *, aliases: bool) -> None:
    from shoal.cli.models_drawing import size
    from shoal.models.transfer import copy

    for version in [source.get(ref) for ref in refs]:
        done = copy(source, target, version, version.aliases if aliases else None)
        typer.echo(f"{done.source} is {done.target} in {target.root}; {done.blobs} blobs copied ({size(done.bytes)})")


def push_to_mlflow(registry: "Registry", place: str, refs: list[str]) -> None:
    from shoal.models.mlflow import push_version

    for version in [registry.get(ref) for ref in refs]:
        typer.echo(push_version(registry, version, place))


def pull_from_mlflow(registry: "Registry", place: str, refs: list[str]) -> None:
    from shoal.models.mlflow import pull_version

    for ref in refs:
        typer.echo(f"{ref} of MLflow is {pull_version(registry, ref, place).ref} in {registry.root}")
