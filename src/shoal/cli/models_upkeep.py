"""`shoal models init`, `verify`, `gc` and `pack`: make a registry, check it, and free room in it."""

from typing import Annotated

import typer

from shoal.cli.models_options import EXIT_FAILED, Json, Models, open_registry, print_json, registry_errors


def init(
    blobs: Annotated[
        str | None, typer.Option(metavar="URL", help="Where blobs go: s3://BUCKET/PATH, or any URL of fsspec.")
    ] = None,
    index: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the index goes: postgresql://USER@HOST/DATABASE#SCHEMA.")
    ] = None,
    models: Models = None,
) -> None:
    """Make a registry with its blobs in an object store or its index in PostgreSQL; others need no such command."""
    from shoal.core.errors import UsageError
    from shoal.models.registry import init_registry

    with registry_errors():
        if blobs is None and index is None:
            raise UsageError("nothing to set up: a registry in a folder is made by its first version; --blobs, --index")
        registry = init_registry(models, blobs, index)
        places = [f"{what} in {url}" for what, url in (("its blobs", blobs), ("its index", index)) if url is not None]
        typer.echo(f"{registry.root} is a registry with {' and '.join(places)}")


def verify(
    refs: Annotated[list[str] | None, typer.Argument(metavar="[MODEL...]", help="Else all versions.")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove damaged blobs, so that pull or add can store them again.")
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
        # Only after all was read and told: what is removed cannot be looked at any more.
        if repair and damages:
            typer.echo(f"{set_aside(registry)} damaged blobs are removed", err=True)
        if damages:
            raise typer.Exit(EXIT_FAILED)


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


def pack(
    name: Annotated[str | None, typer.Argument(help="Only versions of this name.", show_default=False)] = None,
    models: Models = None,
    json: Json = False,
) -> None:
    """Store older versions as differences to newer ones, without loss. The newest and what is in use stay whole."""
    from shoal.cli.models_drawing import size
    from shoal.models.packing import pack as pack_versions

    with registry_errors():
        done = pack_versions(open_registry(models), name)
        if json:
            print_json(done)
        else:
            typer.echo(f"{done.chunks} chunks packed: {size(done.before)} became {size(done.after)}")
