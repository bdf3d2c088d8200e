"""What a script hands to `join`, sorted: models, optimizers, loaders, and the parameters they hold together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.cluster.group import Group
from shoal.core.errors import LayoutError, UsageError
from shoal.wire.bucket import fingerprint, lay_out


@dataclass
class Members:
    """Models and optimizers that train together, with their parameters, each once."""

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    sparse: list[int] = field(default_factory=list)
    """Which parameters have sparse gradients."""


def sort_members(things: Sequence[Any]) -> Members:
    """Find out what is what; loaders are left to the caller."""
    members = Members()
    for thing in things:
        if isinstance(thing, nn.Module):
            members.models.append(thing)
        elif isinstance(thing, Optimizer):
            members.optimizers.append(thing)
        elif not isinstance(thing, Iterable):
            raise UsageError(
                f"join() got a {type(thing).__name__}; give it modules, torch optimizers and data loaders, in any order"
            )
    _collect(members)
    return members


def _collect(members: Members) -> None:
    seen: dict[int, int] = {}
    several = len(members.models) > 1
    for number, model in enumerate(members.models):
        for name, parameter in model.named_parameters():
            _add(members, seen, f"{number}.{name}" if several else name, parameter)
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
                members.sparse.append(seen[id(module.weight)])
    for number, optimizer in enumerate(members.optimizers):
        for g, group in enumerate(optimizer.param_groups):
            for p, parameter in enumerate(group["params"]):
                _add(members, seen, f"optimizer{number}.group{g}.{p}", parameter)


def _add(members: Members, seen: dict[int, int], name: str, parameter: Tensor) -> None:
    if id(parameter) not in seen:
        seen[id(parameter)] = len(members.parameters)
        members.names.append(name)
        members.parameters.append(parameter)


def check_alike(group: Group, members: Members) -> None:
    """Refuse to train models that differ between workers; names the first difference."""
    mine = fingerprint(members.names, lay_out(members.parameters))
    everyone = group.gather(mine.encode())
    if len(set(everyone)) == 1:
        return
    shapes = [
        f"{name}: {list(p.shape)} {p.dtype}" for name, p in zip(members.names, members.parameters, strict=True)
    ]
    listings = [msgspec.json.decode(data, type=list[str]) for data in group.gather(msgspec.json.encode(shapes))]
    for rank, listing in enumerate(listings):
        if listing != listings[0]:
            other, first = next(
                ((a, b) for a, b in zip(listing, listings[0], strict=False) if a != b),
                (f"{len(listing)} parameters", f"{len(listings[0])} parameters"),
            )
            raise LayoutError(f"worker {rank} holds {other} where worker 0 holds {first}; all must build the same model")
    raise LayoutError("workers hold models on different kinds of devices; move all of them to run.device")
