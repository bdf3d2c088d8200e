"""`shoal models zoo`: ready-trained models, those with the alias `zoo`."""

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.models_options import Json, Models, open_registry, print_json, registry_errors

if TYPE_CHECKING:
    from shoal.models.version import ModelVersion

ALIAS = "zoo"


def zoo(
    verify: Annotated[bool, typer.Option("--verify", help="Also read every byte of them and check it.")] = False,
    models: Models = None,
    json: Json = False,
) -> None:
    """List ready-trained models, those with the alias `zoo`, with their recorded figures and hashes."""
    from shoal.models.errors import RegistryError
    from shoal.models.upkeep import verify as check

    with registry_errors():
        registry = open_registry(models)
        found = sorted((each for each in registry.list() if ALIAS in each.aliases), key=lambda each: each.name)
        if json:
            print_json(found)
        elif found:
            draw_zoo(found)
        else:
            typer.echo(f"no ready-trained models in {registry.root}; 'make zoo' trains those of examples/models")
        if verify and (damages := check(registry, found)):
            raise RegistryError("; ".join(f"{damage.ref}: {damage.problem}" for damage in damages))


def draw_zoo(versions: "list[ModelVersion]") -> None:
    from shoal.cli.models_drawing import draw_rows, metrics_text, size

    draw_rows(
        ["model", "version", "figures", "parameters", "size", "samples", "sha256"],
        [
            (
                f"{v.name}@{ALIAS}",
                v.version,
                metrics_text(v.metrics),
                v.parameters,
                size(v.bytes),
                v.samples,
                v.digest[:16],
            )
            for v in versions
        ],
    )
