"""Which part of a run's state a loan brings: what updates alone change, parameters and what optimizers keep of each.

All the rest (buffers, schedules, where the training stands) is small, and told anew when a newcomer enters.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from shoal.train.checkpoint.snapshot import pack
from shoal.train.fingerprint import fingerprint_of
from shoal.train.joined import Joined

UPDATE = "update."
"""Before the number of an update, in what a newcomer with a loan is told at last."""
SMALL = 1024
"""Elements of a tensor that is told anew anyway."""


def bulk(joined: Sequence[Joined]) -> dict[str, Tensor]:
    """The tensors themselves, not copies, by the names that `snapshot.common` has for them."""
    tensors: dict[str, Tensor] = {}
    for number, one in enumerate(joined):
        named = zip(one.members.names, one.members.parameters, strict=True)
        tensors |= {f"{number}.parameter.{name}": parameter.detach() for name, parameter in named}
        # a snapshot has schedulers after them, so that numbers are the same; to find those takes long
        pack([optimizer.state_dict() for optimizer in one.members.optimizers], tensors, f"{number}.state")
    return {name: tensor for name, tensor in tensors.items() if tensor.numel() >= SMALL}


def proof(tensors: Mapping[str, Tensor]) -> str:
    """Equal for those who hold the same bits under the same names."""
    return f"{len(tensors)} {fingerprint_of(tensors[name] for name in sorted(tensors)):016x}"
