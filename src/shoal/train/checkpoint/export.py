"""The weights of models as a plain safetensors file, for others: names as in `state_dict`, nothing else in it."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from shoal.core.durable import write_file
from shoal.core.errors import UsageError
from shoal.train.checkpoint.shard import pieces


def export(models: Sequence[nn.Module], path: Path) -> None:
    """Write them; of several models each has its number in front. Tied weights are there under every name."""
    several = len(models) > 1
    states = [model.state_dict(prefix=f"{i}." if several else "") for i, model in enumerate(models)]
    tensors = {name: t.detach().cpu() for state in states for name, t in state.items() if isinstance(t, Tensor)}
    try:
        write_file(path, b"".join(pieces(tensors)))
    except OSError as error:
        raise UsageError(f"cannot save to {str(path)!r}: {error.strerror}; give a file in a folder") from None
