"""What a script hands to `join`, sorted: models, optimizers, loaders, and the parameters they hold together."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shoal.core.errors import LayoutError, PayloadError, UsageError
from shoal.groups.base import WorkerGroup
from shoal.train.served_embedding import ServedEmbedding
from shoal.train.state import misfit


@dataclass
class JoinedMembers:
    """Models and optimizers that train together, with their parameters, each once."""

    models: list[nn.Module] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    sparse: list[int] = field(default_factory=list)
    """Which parameters have sparse gradients."""
    stateful: list[Any] = field(default_factory=list)
    """Whatever else has a state that all workers share: a `GradScaler`, a scheduler, an average."""
    tables: dict[str, ServedEmbedding] = field(default_factory=dict)
    """Tables that lie on servers, by the name that their rows would have as a parameter."""
    served: list[int] = field(default_factory=list)
    """Which parameters lie on servers, by the plan."""
    loss: str = "mean"
    """What the script's loss is over the samples of its batch: their `mean`, or their `sum`."""

    @property
    def all_names(self) -> list[str]:
        """Of parameters and of tables."""
        return [*self.names, *self.tables]

    @contextmanager
    def trained_as(self, trained: Sequence[bool]) -> Iterator[None]:
        """Inside, parameters are trained or frozen as `trained` says."""
        now = [parameter.requires_grad for parameter in self.parameters]
        self._train(trained)
        try:
            yield
        finally:
            self._train(now)

    def _train(self, trained: Sequence[bool]) -> None:
        for parameter, wanted in zip(self.parameters, trained, strict=True):
            parameter.requires_grad_(wanted)


LOSSES = ("mean", "sum")


def check_loss(loss: str) -> str:
    if loss not in LOSSES:
        raise UsageError(f"join(loss={loss!r}): use 'mean' or 'sum', whichever the loss is over the samples of a batch")
    return loss


def sort_members(things: Sequence[Any], known: Iterable[JoinedMembers] = ()) -> JoinedMembers:
    """Find out what is what; loaders are left to the caller, and what is `known` is not joined again."""
    members = JoinedMembers()
    owners = {id(owner) for other in known for owner in (*other.models, *other.optimizers)}
    for thing in things:
        if isinstance(thing, nn.Module):
            members.models += [thing] * (id(thing) not in owners)
        elif isinstance(thing, Optimizer):
            members.optimizers += [thing] * (id(thing) not in owners)
        elif is_stateful(thing):
            _check_state(thing)
            members.stateful += [thing] * (id(thing) not in owners)
        elif not _is_loader(thing):
            raise UsageError(
                f"join() got a {type(thing).__name__}; give it modules, torch optimizers, data loaders and objects "
                "with state_dict and load_state_dict, in any order"
            )
        owners.add(id(thing))
    # -1: another join has it, so it is not added here
    _collect(members, {id(parameter): -1 for other in known for parameter in other.parameters})
    return members


def _is_loader(thing: object) -> bool:
    return isinstance(thing, Iterable) and not isinstance(thing, str | bytes | Tensor | Mapping)


def is_stateful(thing: object) -> bool:
    """Whether something is joined for its state alone."""
    if isinstance(thing, nn.Module | Optimizer) or _is_loader(thing):
        return False
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


def _check_state(thing: Any) -> None:
    if isinstance(thing, LRScheduler):  # functions in it stay behind, and every worker keeps its own
        return
    if found := misfit(thing.state_dict(), "its state"):
        raise UsageError(
            f"join() got a {type(thing).__name__} that cannot be handed on: {found}; "
            "checkpoints hold numbers, strings, dense tensors, None, and lists and dicts of those"
        )


def _collect(members: JoinedMembers, seen: dict[int, int]) -> None:
    several = len(members.models) > 1
    # models first, so that parameters have the names that their model gives them
    for number, model in enumerate(members.models):
        for name, parameter in model.named_parameters():
            _add(members, seen, f"{number}.{name}" if several else name, parameter)
        for path, module in model.named_modules():
            if isinstance(module, ServedEmbedding):
                name = f"{path}.weight" if path else "weight"
                members.tables[f"{number}.{name}" if several else name] = module
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
                index = seen.get(id(module.weight), -1)
                members.sparse += [index] * (index >= 0 and index not in members.sparse)
    for number, optimizer in enumerate(members.optimizers):
        for g, group in enumerate(optimizer.param_groups):
            for p, parameter in enumerate(group["params"]):
                _add(members, seen, f"optimizer{number}.group{g}.{p}", parameter)


def _add(members: JoinedMembers, seen: dict[int, int], name: str, parameter: Tensor) -> None:
    if is_lazy(parameter):
        raise UsageError(f"parameter {name!r} has no shape yet (a lazy module); run the model once before join()")
    # a tied parameter has several names, and is one
    if id(parameter) not in seen:
        seen[id(parameter)] = len(members.parameters)
        members.names.append(name)
        members.parameters.append(parameter)


def check_alike(group: WorkerGroup, members: JoinedMembers) -> None:
    """Refuse to train models that differ between workers; names the first difference."""
    mine = _list(members)

    def check(said: bytes) -> None:
        if msgspec.json.decode(said, type=list[str]) != mine:
            raise LayoutError("it holds another model than the others; all must build the same one")

    # `check` evicts a remote worker that differs; a difference among the run's own ends the run below
    gathered = group.gather(msgspec.json.encode(mine), check=check)
    listings = [msgspec.json.decode(data, type=list[str]) for data in gathered]
    for rank, listing in enumerate(listings):
        if listing != listings[0]:
            other, first = next(
                ((a, b) for a, b in zip(listing, listings[0], strict=False) if a != b),
                (f"{len(listing)} parameters and buffers", f"{len(listings[0])}"),
            )
            raise LayoutError(
                f"worker {rank} holds {other} where worker 0 holds {first}; all must build the same model"
            )


def _list(members: JoinedMembers) -> list[str]:
    """One line for everything that must be equal."""
    lines = [
        f"{name}: {_describe(p)}{'' if p.requires_grad else ' frozen'}{' sparse' if i in members.sparse else ''}"
        for i, (name, p) in enumerate(zip(members.names, members.parameters, strict=True))
    ]
    lines += [f"buffer {name}: {_describe(b)}" for model in members.models for name, b in model.named_buffers()]
    lines += [f"table {name}: {table.describe(name)}" for name, table in members.tables.items()]
    lines += [f"loss {members.loss!r}"] * (members.loss != "mean")
    lines += [f"{type(o).__name__} with {len(o.param_groups)} groups" for o in members.optimizers]
    return lines + [type(thing).__name__ for thing in members.stateful]


def _describe(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device.type}"


def read_count(said: bytes) -> int:
    """How many samples a worker says it has."""
    # cut first: a peer must not make this worker parse a number of a million digits
    count = int(said[:20])
    if not 0 <= count < 1 << 53:
        raise PayloadError(f"{count} samples; a worker has 0 or more")
    return count


def mean_of(said: Sequence[bytes]) -> float:
    """The mean of the workers' numbers; not finite if one of them is not."""
    values = [read_value(one) for one in said]
    # fsum raises for infinities of both signs
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values)


def read_value(said: bytes) -> float:
    """What number a worker gives; PayloadError for what is none."""
    try:
        return float(said[:40])
    except ValueError:
        raise PayloadError(f"{said[:40]!r} is no number") from None
