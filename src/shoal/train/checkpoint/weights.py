"""Weights without all else that training needs: written as a file for others, and read from a checkpoint."""

import re
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from shoal.core.durable import write_file
from shoal.core.errors import UsageError
from shoal.train.checkpoint.manifest import CheckpointDamaged, CheckpointManifest, read_manifest, read_shard
from shoal.train.checkpoint.shard import ShardError, parse, pieces

_NAMED = re.compile(r"0\.(?:parameter|buffer\.0)\.(.+)", re.DOTALL)
_OTHERS = re.compile(r"(?:[1-9]\d*\.parameter|\d+\.buffer\.[1-9]\d*)\.")


def read_weights(folder: Path) -> tuple[CheckpointManifest, dict[str, Tensor]]:
    """Return parameters and buffers of a checkpoint whose bytes verify, or raise UsageError with what is wrong with it.

    Names are those of `named_parameters` and `named_buffers`: tied weights are there once, and so are buffers that are
    not persistent.
    """
    try:
        manifest = read_manifest(folder)
        tensors, _ = parse(read_shard(folder, manifest.shards[0]), folder.name)
    except (CheckpointDamaged, ShardError) as error:
        raise UsageError(f"{folder} is no checkpoint to import: {error}") from None
    if any(_OTHERS.match(name) for name in tensors):
        raise UsageError(f"{folder} holds several models; register them in the script with run.register()")
    return manifest, {found[1]: tensor for name, tensor in tensors.items() if (found := _NAMED.fullmatch(name))}


def write_weights(models: Sequence[nn.Module], path: Path) -> None:
    """Write a plain safetensors file for others: names as in `state_dict`, nothing else in it.

    Of several models each has its number in front. Tied weights are there under every name.
    """
    several = len(models) > 1
    states = [model.state_dict(prefix=f"{i}." if several else "") for i, model in enumerate(models)]
    tensors = {name: t.detach().cpu() for state in states for name, t in state.items() if isinstance(t, Tensor)}
    try:
        write_file(path, b"".join(pieces(tensors)))
    except OSError as error:
        raise UsageError(f"cannot save to {str(path)!r}: {error.strerror}; give a file in a folder") from None
