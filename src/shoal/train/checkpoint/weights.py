"""The parameters and buffers of a model in a checkpoint, without optimizers and random streams."""

import re
from pathlib import Path

from torch import Tensor

from shoal.core.errors import UsageError
from shoal.train.checkpoint.manifest import CheckpointDamaged, CheckpointManifest, read_manifest, read_shard
from shoal.train.checkpoint.shard import ShardError, parse

_NAMED = re.compile(r"0\.(?:parameter|buffer\.0)\.(.+)", re.DOTALL)
_OTHERS = re.compile(r"(?:[1-9]\d*\.parameter|\d+\.buffer\.[1-9]\d*)\.")


def read_weights(folder: Path) -> tuple[CheckpointManifest, dict[str, Tensor]]:
    """Of a checkpoint whose bytes verify, by the names of `named_parameters` and `named_buffers`: tied weights once,
    and buffers that are not persistent too. UsageError says what is wrong with it.
    """
    try:
        manifest = read_manifest(folder)
        tensors, _ = parse(read_shard(folder, manifest.shards[0]), folder.name)
    except (CheckpointDamaged, ShardError) as error:
        raise UsageError(f"{folder} is no checkpoint to import: {error}") from None
    if any(_OTHERS.match(name) for name in tensors):
        raise UsageError(f"{folder} holds several models; register them in the script with run.register()")
    return manifest, {found[1]: tensor for name, tensor in tensors.items() if (found := _NAMED.fullmatch(name))}
