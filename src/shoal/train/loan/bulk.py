"""Which part of a run's state a loan brings: what updates alone change, parameters and what optimizers keep of each.

All the rest (buffers, schedules, where the training stands) is small, and told anew when a newcomer enters.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from shoal.train.checkpoint.snapshot import common
from shoal.train.fingerprint import fingerprint_of
from shoal.train.joined import Joined

UPDATE = "update."
"""Before the number of an update, in what a newcomer with a loan is told at last."""
SMALL = 1024
"""Elements of a tensor that is told anew anyway."""


def bulk(joined: Sequence[Joined]) -> dict[str, Tensor]:
    """By the names a checkpoint has for them; the tensors themselves, not copies."""
    tensors, _ = common(joined)
    return {name: tensors[name] for name in tensors if _belongs(name, tensors[name])}


def _belongs(name: str, tensor: Tensor) -> bool:
    kind = name.split(".")[1]
    return kind in ("parameter", "state") and tensor.numel() >= SMALL


def proof(tensors: Mapping[str, Tensor]) -> str:
    """Equal for those who hold the same bits under the same names."""
    return f"{len(tensors)} {fingerprint_of(tensors[name] for name in sorted(tensors)):016x}"
