"""What catch-up sends: the tensors that only updates change, and each optimizer update as bytes, exactly."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import ShoalError
from shoal.train.checkpoint.shard import pieces
from shoal.train.checkpoint.snapshot import pack, unpack
from shoal.train.fingerprint import fingerprint_of
from shoal.train.joined import JoinedModels
from shoal.train.state import patch

UPDATE = "update."
"""Before the number of an update, in what the donor hands to a newcomer that has had a stream."""
SMALL = 1024
"""Elements of a tensor that is told anew anyway."""


def bulk(joined: Sequence[JoinedModels]) -> dict[str, Tensor]:
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


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class UnfitError(ShoalError):
    """An update that cannot be written down."""


def write(optimizer: Optimizer, number: int) -> bytes:
    """The update that `optimizer`, number `number` of its join, is about to make."""
    tensors: dict[str, Tensor] = {}
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    texts = {"kind": "update", "optimizer": str(number), "options": pack(options, tensors, "option")}
    for index, parameter in enumerate(_parameters(optimizer)):
        if parameter.grad is not None:
            tensors |= {f"{index}.{kind}": part for kind, part in _parts(parameter.grad.detach()).items()}
    return b"".join(pieces(tensors, texts))


def _parts(gradient: Tensor) -> dict[str, Tensor]:
    if gradient.layout != torch.strided:
        raise UnfitError(f"a gradient of layout {gradient.layout}")
    flat = gradient.reshape(-1).contiguous().cpu()
    places = flat.view(_BITS[flat.element_size()]).nonzero().view(-1)
    if len(places) * (4 + flat.element_size()) >= flat.numel() * flat.element_size() or flat.numel() >= 1 << 31:
        return {"all": flat}
    return {"places": places.int(), "values": flat[places]}


def repeat(optimizers: list[Optimizer], tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Make the update that was written; gradients are gone afterwards."""
    optimizer = optimizers[int(texts["optimizer"])]
    options = unpack(texts["options"], tensors, "option")
    for group, told in zip(optimizer.param_groups, options, strict=True):
        group.update(patch(told, {key: group.get(key) for key in told}))
    for index, parameter in enumerate(_parameters(optimizer)):
        parameter.grad = _gradient(parameter, index, tensors)
    optimizer.step()
    for parameter in _parameters(optimizer):
        parameter.grad = None


def _gradient(parameter: Tensor, index: int, tensors: Mapping[str, Tensor]) -> Tensor | None:
    if f"{index}.all" in tensors:
        flat = tensors[f"{index}.all"].to(parameter.device)
    elif f"{index}.values" in tensors:
        flat = torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
        flat[tensors[f"{index}.places"].long()] = tensors[f"{index}.values"].to(parameter.device)
    else:
        return None
    return flat.view(parameter.shape)


def _parameters(optimizer: Optimizer) -> Iterable[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
