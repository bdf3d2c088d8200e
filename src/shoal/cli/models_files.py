"""`shoal models export` and `import`: versions as files of other tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.models_options import Json, Models, Ref, open_registry, print_json, registry_errors

if TYPE_CHECKING:
    from shoal.models.registry import Registry
    from shoal.models.version import ModelVersion


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


def import_(
    source: Annotated[str, typer.Argument(metavar="FILE", help=".safetensors, .onnx, .pt2, or a checkpoint's folder.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model of which it becomes the next version.")],
    note: Annotated[str, typer.Option(help="Kept with the version.")] = "",
    trust_pt2: Annotated[
        bool, typer.Option("--trust-pt2", help="Read a .pt2 file, which may run code: only your own.")
    ] = False,
    models: Models = None,
) -> None:
    """Add a file of another tool, or a checkpoint of a run, as a version."""

    from shoal.models.importing import import_file

    with registry_errors():
        registry, path = open_registry(models), Path(source)
        if path.is_dir():
            version = import_checkpoint(registry, path, name, note)
        else:
            version = import_file(registry, path, name, note, trust_pt2=trust_pt2)
        typer.echo(f"{source} is {version.ref} in {registry.root}")


def import_checkpoint(registry: "Registry", folder: Path, name: str, note: str = "") -> "ModelVersion":
    """Add a checkpoint whose every byte verifies: its parameters and buffers, with the lineage of its run.

    Optimizers and random streams stay out: a version is a model to use, not a run to continue.
    """
    from shoal.models.lineage import read_lineage
    from shoal.train.checkpoint.weights import read_weights

    manifest, tensors = read_weights(folder)
    # A checkpoint lies two folders below its run.
    lineage = read_lineage(folder.absolute().parents[1], step=manifest.step, epoch=manifest.epoch)
    return registry.add(name, tensors, lineage=lineage, note=note or f"checkpoint {folder.name}")
