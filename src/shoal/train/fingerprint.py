"""64 bits that stand for all parameters of a replica: equal replicas have equal ones."""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from shoal.train.joined import JoinedModels


def fingerprint(joined: Sequence[JoinedModels]) -> int:
    """Of everything that workers train together; not what each trains alone, nor copies of what servers keep."""
    return fingerprint_of(
        parameter
        for one in joined
        if not one.alone
        for index, parameter in enumerate(one.members.parameters)
        if index not in one.members.served
    )


def fingerprint_of(tensors: Iterable[Tensor]) -> int:
    """Of these, in this order."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        # one sum for each tensor: a sum over all would not notice two that have changed places
        digest.update(_sum(tensor.detach()).to_bytes(8, "little", signed=True))
    return int.from_bytes(digest.digest(), "little")


def _sum(tensor: Tensor) -> int:
    """The tensor's bits added up as whole numbers, which wrap: as fast as memory, and any flipped bit changes it."""
    flat = tensor.contiguous().view(-1)
    size = flat.numel() * flat.element_size()
    if size % 8 or not size:
        return int(flat.view(torch.uint8).sum(dtype=torch.int64))
    if flat.storage_offset() * flat.element_size() % 8:
        # torch views as int64 only what begins at a multiple of eight bytes
        flat = flat.clone()
    return int(flat.view(torch.int64).sum())
