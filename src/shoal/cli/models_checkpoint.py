"""A checkpoint of a run as a version of a model: its parameters and buffers, without optimizers and random streams."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.models.registry import Registry
    from shoal.models.version import ModelVersion

_NAMED = re.compile(r"0\.(?:parameter|buffer\.0)\.(.+)", re.DOTALL)
_OTHERS = re.compile(r"(?:[1-9]\d*\.parameter|\d+\.buffer\.[1-9]\d*)\.")


def import_checkpoint(registry: "Registry", folder: Path, name: str, note: str = "") -> "ModelVersion":
    """Add a checkpoint whose every byte verifies, with the lineage of its run."""
    from shoal.core.errors import UsageError
    from shoal.models.lineage import read_lineage
    from shoal.train.checkpoint.manifest import CheckpointDamaged, read_manifest, read_shard
    from shoal.train.checkpoint.shard import ShardError, parse

    try:
        manifest = read_manifest(folder)
        tensors, _ = parse(read_shard(folder, manifest.shards[0]), folder.name)
    except (CheckpointDamaged, ShardError) as error:
        raise UsageError(f"{folder} is no checkpoint to import: {error}") from None
    lineage = read_lineage(folder.absolute().parents[1], step=manifest.step, epoch=manifest.epoch)
    return registry.add(name, model_tensors(tensors, folder), lineage=lineage, note=note or f"checkpoint {folder.name}")


def model_tensors(tensors: "dict[str, Tensor]", folder: Path) -> "dict[str, Tensor]":
    """Names as in the model's `state_dict`; UsageError if the checkpoint is of several models."""
    from shoal.core.errors import UsageError

    if any(_OTHERS.match(name) for name in tensors):
        raise UsageError(f"{folder} holds several models; register them in the script with run.register()")
    return {found[1]: tensor for name, tensor in tensors.items() if (found := _NAMED.fullmatch(name))}
