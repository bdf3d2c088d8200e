"""Weights of a version into the user's own module: `shoal.models.load("digits@prod", model)`.

The registry holds no code. What a model computes is the module's; its weights are the version's, checked byte by byte.
"""

import os
from typing import TypeVar

import torch
from torch import Tensor, nn

from shoal.core.errors import LayoutError
from shoal.models.locks import VersionHold
from shoal.models.registry import Registry
from shoal.models.version import ModelVersion

Module = TypeVar("Module", bound=nn.Module)

_loaded: list[tuple[ModelVersion, VersionHold]] = []
"""What this process has loaded into modules: kept from removal until it ends."""


def load(ref: str, module: Module, registry: Registry | str | os.PathLike[str] | None = None) -> Module:
    """Give `module` the weights of the version `ref`; returns it. LayoutError names the first that does not fit.

    A run of this process that is registered later has the version as its parent.
    """
    where = registry if isinstance(registry, Registry) else Registry(registry)
    version = where.get(ref)
    # Before its tensors are read, so that no collection can remove them in between.
    hold = where.hold(version)
    fill(module, where.tensors(version), version.ref)
    _loaded.append((version, hold))
    return module


def fill(module: nn.Module, tensors: dict[str, Tensor], ref: str) -> None:
    """Copy `tensors` into the module's own, which must have the same names and shapes; nothing is copied if not."""
    own = {name: tensor for name, tensor in module.state_dict().items() if isinstance(tensor, Tensor)}
    for name, mine in own.items():
        if name not in tensors:
            raise LayoutError(f"{ref} has no {name!r}, which the module wants; is it another architecture?")
        if tensors[name].shape != mine.shape:
            raise LayoutError(f"{name!r} is {list(tensors[name].shape)} in {ref} and {list(mine.shape)} in the module")
    surplus = next((name for name in tensors if name not in own), None)
    if surplus is not None:
        raise LayoutError(f"the module has no {surplus!r}, which {ref} holds; is it another architecture?")
    with torch.no_grad():
        for name, mine in own.items():
            mine.copy_(tensors[name])


def parent_digest() -> str:
    """Of the version that this process loaded last; empty if none."""
    return _loaded[-1][0].digest if _loaded else ""
