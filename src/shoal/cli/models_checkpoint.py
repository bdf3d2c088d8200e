"""A checkpoint of a run as a version of a model: its parameters and buffers, without optimizers and random streams."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.models.registry import Registry
    from shoal.models.version import ModelVersion


def import_checkpoint(registry: "Registry", folder: Path, name: str, note: str = "") -> "ModelVersion":
    """Add a checkpoint whose every byte verifies, with the lineage of its run."""
    from shoal.models.lineage import read_lineage
    from shoal.train.checkpoint.weights import read_weights

    manifest, tensors = read_weights(folder)
    lineage = read_lineage(folder.absolute().parents[1], step=manifest.step, epoch=manifest.epoch)
    return registry.add(name, tensors, lineage=lineage, note=note or f"checkpoint {folder.name}")
