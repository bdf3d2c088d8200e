"""`shoal models`: the registry of trained models, by commands.

Exit codes: 0 done · 1 the registry is damaged, full or locked · 2 the command was wrong.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.models.registry import Registry

app = typer.Typer(no_args_is_help=True)

Models = Annotated[
    str | None,
    typer.Option("--models", metavar="DIR", help="Folder of the registry; else $SHOAL_MODELS, else ./models."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
Ref = Annotated[str, typer.Argument(metavar="MODEL", help="NAME (its newest version), NAME:VERSION or NAME@ALIAS.")]
EXIT_FAILED = 1


@contextmanager
def registry_errors() -> Iterator[None]:
    """One line on stderr for whatever is wrong, with its exit code."""
    from shoal.cli.errors import usage_errors
    from shoal.core.errors import LayoutError
    from shoal.models.errors import RegistryError

    with usage_errors():
        try:
            yield
        except (RegistryError, LayoutError) as error:
            typer.echo(f"shoal: {error}", err=True)
            raise typer.Exit(EXIT_FAILED) from None


def open_registry(models: str | None) -> "Registry":
    from shoal.models.registry import Registry

    return Registry(models)


def print_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(value).decode())


@app.callback()
def models() -> None:
    """Versions of trained models: list, compare, tag, query, load elsewhere. Every run that ends well adds one."""


@app.command("ls")
def ls(
    name: Annotated[str | None, typer.Argument(help="Only versions of this name.", show_default=False)] = None,
    models: Models = None,
    json: Json = False,
) -> None:
    """List versions, newest first."""
    from shoal.cli.models_drawing import draw_versions

    with registry_errors():
        versions = open_registry(models).list(name)
        if json:
            print_json(versions)
        else:
            draw_versions(versions, open_registry(models).root)


@app.command("show")
def show(ref: Ref, models: Models = None, json: Json = False) -> None:
    """Show one version: lineage, metrics, files, tensors."""
    import msgspec

    from shoal.cli.models_drawing import draw_version

    with registry_errors():
        registry = open_registry(models)
        version = registry.get(ref)
        manifest, ancestors = registry.manifest(version), registry.lineage(version)
        if json:
            page = msgspec.to_builtins(version) | {
                "lineage": manifest.lineage,
                "ancestors": [each.ref for each in ancestors],
                "files": [{"name": entry.name, "bytes": entry.size} for entry in manifest.files],
                "tensors": [{"name": e.name, "dtype": e.dtype, "shape": e.shape} for e in manifest.tensors],
            }
            print_json(page)
        else:
            draw_version(version, manifest, ancestors)


@app.command("diff")
def diff(first: Ref, second: Ref, models: Models = None, json: Json = False) -> None:
    """Compare two versions: metrics, lineage, and how far each tensor moved."""
    from shoal.cli.models_drawing import draw_diff
    from shoal.models.compare import diff as compare

    with registry_errors():
        registry = open_registry(models)
        found = compare(registry, registry.get(first), registry.get(second))
        if json:
            print_json(found)
        else:
            draw_diff(found)


@app.command("tag")
def tag(
    ref: Ref,
    alias: Annotated[str | None, typer.Argument(help="The alias that stands for it from now on.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the alias NAME@ALIAS; the version stays.")] = False,
    models: Models = None,
) -> None:
    """Set an alias: `shoal models tag digits:3 prod` makes digits@prod."""
    from shoal.core.errors import UsageError

    with registry_errors():
        registry = open_registry(models)
        if delete == (alias is not None):
            raise UsageError("give MODEL and ALIAS to set one, or --delete NAME@ALIAS to remove it")
        if alias is None:
            version = registry.untag(ref)
            typer.echo(f"{ref} is removed; {version.ref} stays")
        else:
            version = registry.tag(ref, alias)
            typer.echo(f"{version.name}@{alias} is {version.ref}")


@app.command("rm")
def rm(
    refs: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Versions: NAME:VERSION.")],
    models: Models = None,
) -> None:
    """Remove versions; refused while an alias, a run or a server needs one. `gc` frees the space."""
    from shoal.core.errors import UsageError

    with registry_errors():
        registry = open_registry(models)
        for ref in refs:
            if ":" not in ref:
                raise UsageError(f"{ref!r} names no version; write {registry.get(ref).ref} to remove that one")
            typer.echo(f"{registry.remove(ref).ref} is removed; 'shoal models gc' frees its space")


@app.command("verify")
def verify(
    refs: Annotated[list[str] | None, typer.Argument(metavar="[MODEL...]", help="Else all versions.")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove damaged blobs, so that pull or add stores them anew.")
    ] = False,
    models: Models = None,
    json: Json = False,
) -> None:
    """Read every byte and check it; exit code 1 if anything is damaged."""
    from shoal.models.upkeep import set_aside
    from shoal.models.upkeep import verify as check

    with registry_errors():
        registry = open_registry(models)
        versions = [registry.get(ref) for ref in refs] if refs else registry.list()
        damages = check(registry, versions)
        if json:
            print_json({"versions": len(versions), "damages": damages})
        else:
            for damage in damages:
                typer.echo(f"{damage.ref}: {damage.problem}", err=True)
            typer.echo(f"{len(versions)} versions read, {len({damage.ref for damage in damages})} damaged")
        if repair and damages:
            typer.echo(f"{set_aside(registry)} damaged blobs are removed", err=True)
        if damages:
            raise typer.Exit(EXIT_FAILED)


@app.command("gc")
def gc(
    keep: Annotated[
        int | None, typer.Option(metavar="N", help="Also remove versions beyond the newest N of each name.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    models: Models = None,
    json: Json = False,
) -> None:
    """Remove blobs that no version needs. What has an alias or is used by a run or server always stays."""
    from shoal.cli.models_drawing import size
    from shoal.models.upkeep import collect

    with registry_errors():
        done = collect(open_registry(models), keep, dry=dry_run)
        if json:
            print_json(done)
        else:
            verb = "would be removed" if dry_run else "removed"
            names = f": {', '.join(done.versions)}" if done.versions else ""
            typer.echo(f"{len(done.versions)} versions and {done.blobs} blobs ({size(done.bytes)}) {verb}{names}")


@app.command("sql")
def sql(
    statement: Annotated[str, typer.Argument(metavar="'select ...'", help="One statement; see docs/registry.md.")],
    models: Models = None,
    json: Json = False,
) -> None:
    """Ask the index in SQL, read-only: table versions has a row for each, a column for each metric."""
    from shoal.models.queries import select

    with registry_errors():
        answer(select(open_registry(models), statement), json=json)


@app.command("query")
def query(
    clauses: Annotated[str, typer.Argument(metavar="'where ...'", help="What follows 'select * from versions'.")],
    models: Models = None,
    json: Json = False,
) -> None:
    """List versions that fit: `where accuracy > 0.97 and plan like '%dgc%' order by bytes`."""
    from shoal.cli.models_drawing import draw_versions
    from shoal.models.queries import query as ask

    with registry_errors():
        registry = open_registry(models)
        columns, rows = ask(registry, clauses)
        known = {version.ref: version for version in registry.list()}
        found = [known[row[columns.index("ref")]] for row in rows if row[columns.index("ref")] in known]
        if json:
            print_json(found)
        else:
            draw_versions(found, registry.root)


def answer(found: "tuple[list[str], list[tuple[Any, ...]]]", *, json: bool) -> None:
    """Rows as a table, or as JSON objects."""
    from shoal.cli.models_drawing import draw_rows

    columns, rows = found
    if json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        draw_rows(columns, rows)


@app.command("export")
def export(
    ref: Ref,
    target: Annotated[str, typer.Argument(metavar="FILE", help="What to write.")],
    format: Annotated[  # noqa: A002  (the word of the command line)
        str | None, typer.Option(metavar="F", help="safetensors, onnx, onnx-int8 or pt2; else by FILE's ending.")
    ] = None,
    module: Annotated[
        str | None, typer.Option(metavar="FILE.py:FUNCTION", help="Gives the torch module, where no program is stored.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="1x28x28", help="Of one sample, where none are stored: random ones are used.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest relative error on the samples; else 1e-5, of int8 0.05.")
    ] = None,
    models: Models = None,
    json: Json = False,
) -> None:
    """Write a version as a file for other tools, checked against the original on its samples."""
    from pathlib import Path

    from shoal.cli.models_drawing import size
    from shoal.models.exporting import export_version, load_module, random_inputs

    with registry_errors():
        registry = open_registry(models)
        done = export_version(
            registry,
            registry.get(ref),
            Path(target),
            format or Path(target).suffix.removeprefix("."),
            module=load_module(module) if module else None,
            example=random_inputs(shape) if shape else None,
            tolerance=tolerance,
        )
        if json:
            print_json(done)
        else:
            checked = f"; error {done.error:.2g} on {done.samples} samples" if done.samples else ""
            typer.echo(f"{done.path}: {done.format}, {size(done.bytes)}{checked}")


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(metavar="FILE", help=".safetensors, .onnx, or a checkpoint's folder.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model of which it becomes the next version.")],
    note: Annotated[str, typer.Option(help="Kept with the version.")] = "",
    models: Models = None,
) -> None:
    """Add a file of another tool, or a checkpoint of a run, as a version."""
    from pathlib import Path

    from shoal.cli.models_checkpoint import import_checkpoint
    from shoal.models.importing import import_file

    with registry_errors():
        registry, path = open_registry(models), Path(source)
        add = import_checkpoint if path.is_dir() else import_file
        version = add(registry, path, name, note)
        typer.echo(f"{source} is {version.ref} in {registry.root}")


@app.command("push")
def push(
    refs: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Versions to copy.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The other registry, or ssh://HOST/DIR.")],
    aliases: Annotated[bool, typer.Option("--aliases", help="Set their aliases there too.")] = False,
    models: Models = None,
) -> None:
    """Copy versions to another registry; blobs that are there already are not copied."""
    with registry_errors():
        if is_ssh(to):
            push_over_ssh(open_registry(models), to, refs, aliases=aliases)
        else:
            copy_versions(open_registry(models), open_registry(to), refs, aliases=aliases)


@app.command("pull")
def pull(
    refs: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Versions to copy.")],
    source: Annotated[str, typer.Option("--from", metavar="DIR", help="The other registry, or ssh://HOST/DIR.")],
    aliases: Annotated[bool, typer.Option("--aliases", help="Set their aliases here too.")] = False,
    models: Models = None,
) -> None:
    """Copy versions from another registry to this one."""
    with registry_errors():
        if is_ssh(source):
            pull_over_ssh(open_registry(models), source, refs, aliases=aliases)
        else:
            copy_versions(open_registry(source), open_registry(models), refs, aliases=aliases)


@app.command("answer", hidden=True)
def answer_pipe(models: Models = None) -> None:
    """Give versions and blobs to whoever asks on standard input: the far end of `pull --from ssh://...`."""
    import sys

    from shoal.models.remote import PipePair, answer_requests

    with registry_errors():
        answer_requests(open_registry(models), PipePair(sys.stdin.buffer, sys.stdout.buffer))


@app.command("receive", hidden=True)
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

    chosen = [registry.get(ref).ref for ref in refs]
    with connected(url, "receive", *chosen, *(["--aliases"] if aliases else [])) as pipes:
        answer_requests(registry, pipes)


def copy_versions(source: "Registry", target: "Registry", refs: list[str], *, aliases: bool) -> None:
    from shoal.cli.models_drawing import size
    from shoal.models.transfer import copy

    for version in [source.get(ref) for ref in refs]:
        done = copy(source, target, version, version.aliases if aliases else None)
        typer.echo(f"{done.source} is {done.target} in {target.root}; {done.blobs} blobs copied ({size(done.bytes)})")
