"""`shoal models`: the registry of trained models, by commands. Each group of them has a file of its own."""

from typing import Annotated

import typer

from shoal.cli import models_ask, models_copy, models_derive, models_files, models_upkeep, models_zoo
from shoal.cli.models_options import Json, Models, Ref, open_registry, print_json, registry_errors

app = typer.Typer(no_args_is_help=True)


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


app.command("init")(models_upkeep.init)
app.command("zoo")(models_zoo.zoo)
app.command("verify")(models_upkeep.verify)
app.command("gc")(models_upkeep.gc)
app.command("pack")(models_upkeep.pack)
app.command("sql")(models_ask.sql)
app.command("query")(models_ask.query)
app.command("derive")(models_derive.derive)
app.command("export")(models_files.export)
app.command("import")(models_files.import_)
app.command("push")(models_copy.push)
app.command("pull")(models_copy.pull)
app.command("answer", hidden=True)(models_copy.answer_pipe)
app.command("receive", hidden=True)(models_copy.receive_pipe)
