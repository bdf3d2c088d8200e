"""What a checkpoint holds, as named tensors and texts.

common (worker 0 writes it)   parameters, buffers, precision, optimizers, schedulers of every join, and what else has
                              a state: a GradScaler, the script's own counters
own (every worker)            random streams, and what its synchronizer carries from step to step
progress                      epoch, step, samples, and where every loader stands

Non-tensors are JSON of `train/state.py`; a function in an optimizer's state stays behind, and the script's own is kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import torch
from torch import Tensor

from shoal.core import seeds
from shoal.core.errors import LayoutError
from shoal.data.standing import LoaderPosition
from shoal.sync.state import StateTensor
from shoal.train.checkpoint.residuals import MARK, RULES
from shoal.train.joined import JoinedModels
from shoal.train.state import flatten, patch, restore, schedulers

STATEFUL = ".stateful"


class TrainingPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far the training had come."""

    epoch: int
    step: int
    samples: list[int]
    """By rank."""
    phase: int
    """How often the script had asked for `run.epochs` before."""
    loaders: list[LoaderPosition]


def common(joined: Sequence[JoinedModels]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state all workers share."""
    tensors: dict[str, Tensor] = {}
    texts: dict[str, str] = {}
    for number, one in enumerate(joined):
        tensors |= {f"{number}.{name}": tensor for name, tensor in _named(one).items()}
        states = [owner.state_dict() for owner in _owners(one)]
        texts[f"{number}.states"] = pack(states, tensors, f"{number}.state")
        texts[f"{number}.stateful"] = pack(
            [thing.state_dict() for thing in one.members.stateful], tensors, f"{number}{STATEFUL}"
        )
    return tensors, texts


def _named(one: JoinedModels) -> dict[str, Tensor]:
    members = one.members
    named = {f"parameter.{name}": p.detach() for name, p in zip(members.names, members.parameters, strict=True)}
    for number, model in enumerate(members.models):
        named |= {f"buffer.{number}.{name}": buffer.detach() for name, buffer in model.named_buffers()}
    return named | {f"precision.{name}": tensor for name, tensor in one.kept().items()}


def _owners(one: JoinedModels) -> list[Any]:
    return [*one.members.optimizers, *schedulers(one.members.optimizers)]


def put_common(one: JoinedModels, number: int, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Give join `number` of a script the state it had; LayoutError names the first thing that does not fit."""
    with torch.no_grad():
        for name, mine in _named(one).items():
            saved = tensors.get(f"{number}.{name}")
            if saved is None:
                raise LayoutError(f"the checkpoint has no {name}; has the model changed since?")
            if saved.shape != mine.shape or saved.dtype != mine.dtype:
                raise LayoutError(
                    f"{name} is {list(mine.shape)} {mine.dtype} here and {list(saved.shape)} {saved.dtype} "
                    "in the checkpoint; has the model changed since?"
                )
            mine.copy_(saved)
    states = unpack(texts[f"{number}.states"], tensors, f"{number}.state")
    for owner, state in zip(_owners(one), states, strict=False):  # schedulers may be made after join
        owner.load_state_dict(patch(state, owner.state_dict()))
    put_stateful(one.members.stateful, number, 0, tensors, texts)


def put_stateful(
    things: Sequence[Any], number: int, first: int, tensors: Mapping[str, Tensor], texts: Mapping[str, str]
) -> None:
    """Give `things`, of join `number` from place `first` on, the state they had, if there is one of theirs."""
    text = texts.get(f"{number}.stateful", "")
    states = unpack(text, tensors, f"{number}{STATEFUL}") if text and things else []
    for thing, state in zip(things, states[first:], strict=False):  # a script may make some of them later
        thing.load_state_dict(patch(state, thing.state_dict()))


def own(joined: Sequence[JoinedModels]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state of this worker alone."""
    generators, standard, numpy = seeds.capture()
    if numpy is not None:
        # numpy's generator state holds an array, which JSON does not know
        kind, words, *rest = cast(tuple[Any, ...], numpy)
        numpy = [kind, [int(word) for word in words], *rest]
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    tensors: dict[str, Tensor] = {}
    texts = {"random": pack([generators, standard, numpy, devices], tensors, "random")}
    for number, one in enumerate(joined):
        state = one.synchronizer.state()
        tensors |= {f"{number}{MARK}{name}": part.values for name, part in state.items()}
        texts[f"{number}{RULES}"] = msgspec.json.encode({name: part.merge for name, part in state.items()}).decode()
    return tensors, texts


def put_random(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Continue this worker's random streams."""
    generators, standard, numpy, devices = unpack(texts["random"], tensors, "random")
    seeds.restore((generators, standard, tuple(numpy) if numpy is not None else None))
    if devices and torch.cuda.is_available() and len(devices) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(devices)


def put_carried(one: JoinedModels, number: int, tensors: Mapping[str, Tensor]) -> None:
    """Give a synchronizer back what it carried."""
    before, rules = f"{number}{MARK}", {name: part.merge for name, part in one.synchronizer.state().items()}
    carried = {name.removeprefix(before): tensor for name, tensor in tensors.items() if name.startswith(before)}
    if carried:
        one.synchronizer.load_state({name: StateTensor(t, rules.get(name, "sum")) for name, t in carried.items()})


def pack(value: Any, tensors: dict[str, Tensor], prefix: str) -> str:
    """`value` as text; the tensors in it go to `tensors`, numbered."""
    found: list[Tensor] = []
    text = msgspec.json.encode(flatten(value, found)).decode()
    tensors |= {f"{prefix}.{number}": tensor.detach() for number, tensor in enumerate(found)}
    return text


def unpack(text: str, tensors: Mapping[str, Tensor], prefix: str) -> Any:
    """Undo `pack`; the tensors are copies."""
    empty: list[Tensor] = []
    value = restore(msgspec.json.decode(text), empty)
    for number, tensor in enumerate(empty):
        tensor.copy_(tensors[f"{prefix}.{number}"])
    return value


class SnapshotBuffer:
    """Copies tensors into memory of its own, the same each time: training goes on while the copy is written."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name, tensor in tensors.items():
            place = self._kept.get(name)
            if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
                place = self._kept[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
            place.copy_(tensor)
        return {name: self._kept[name] for name in tensors}
