"""State of models, optimizers and schedulers as plain text plus tensors, and taking over worker 0's.

Nothing in it can run code: the text is JSON, tensors are raw bytes in an order both sides derive from the text.
"""

import gc
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shoal.core.errors import LayoutError, PayloadError
from shoal.groups.base import GiverLost, WorkerGroup

TENSOR = "\x00tensor"
PAIRS = "\x00pairs"
_TUPLE = "\x00tuple"
NUMBER = "\x00number"
_LOST = "\x00lost"
DTYPES = {str(d): d for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
                               torch.int16, torch.int8, torch.uint8, torch.bool)}  # fmt: skip
_LARGEST = 1 << 63

LOST = object()
"""Stands where worker 0 has something that does not travel: a function, an object."""


def flatten(value: Any, tensors: list[Tensor]) -> Any:
    """`value` as JSON-able data; tensors go to `tensors` and leave their dtype and shape."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return {TENSOR: [str(value.dtype), list(value.shape)]}
    if isinstance(value, dict):
        # pairs, because JSON would make strings of an optimizer's integer keys
        pairs = [[key, flatten(item, tensors)] for key, item in value.items() if isinstance(key, int | str)]
        return {PAIRS: pairs}
    if isinstance(value, list):
        return [flatten(item, tensors) for item in value]
    if isinstance(value, tuple):
        return {_TUPLE: [flatten(item, tensors) for item in value]}
    return _flatten_scalar(value)


def _flatten_scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: str(float(value))}  # JSON has no infinity, ReduceLROnPlateau starts from one
    if value is None or isinstance(value, bool | float | str):
        return value
    return value if isinstance(value, int) and -_LARGEST <= value < _LARGEST else {_LOST: True}


def misfit(value: Any, path: str) -> str:
    """What in `value` does not go into a checkpoint and come back the same, by its path; empty if all does."""
    if isinstance(value, Tensor):
        dense = value.layout == torch.strided and str(value.dtype) in DTYPES
        return "" if dense else f"{path} is a tensor of {value.dtype} and layout {value.layout}"
    if isinstance(value, dict):
        odd = next((key for key in value if type(key) not in (int, str)), None)
        if odd is not None:
            return f"{path} has the key {odd!r}, which is neither a string nor an integer"
        return next(filter(None, (misfit(item, f"{path}[{key!r}]") for key, item in value.items())), "")
    if type(value) in (list, tuple):
        return next(filter(None, (misfit(item, f"{path}[{n}]") for n, item in enumerate(value))), "")
    if isinstance(value, float) or not isinstance(_flatten_scalar(value), dict):
        return ""
    return f"{path} is a {type(value).__name__}, {value!r:.60}"


def restore(value: Any, tensors: list[Tensor]) -> Any:
    """Undo `flatten`; makes empty tensors of the right shape and appends them to `tensors`, in order."""
    if isinstance(value, list):
        return [restore(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == TENSOR:
        return _empty(tensors, *content)
    if kind == _TUPLE:
        return tuple(restore(item, tensors) for item in content)
    if kind == PAIRS:
        return {key: restore(item, tensors) for key, item in content}
    return float(content) if kind == NUMBER else LOST


def _empty(tensors: list[Tensor], name: str, shape: list[int]) -> Tensor:
    if name not in DTYPES:
        raise LayoutError(f"worker 0 holds a tensor of {name}, which is not one of {', '.join(DTYPES)}")
    tensors.append(torch.empty(shape, dtype=DTYPES[name]))
    return tensors[-1]


def patch(value: Any, own: Any) -> Any:
    """`value` with its lost parts replaced by what this worker has in their place."""
    if value is LOST:
        return own
    if isinstance(value, dict):
        mine = own if isinstance(own, dict) else {}
        return {key: patch(item, mine.get(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        others = own if isinstance(own, list | tuple) and len(own) == len(value) else [None] * len(value)
        return type(value)(patch(item, other) for item, other in zip(value, others, strict=True))
    return value


StateRule = Callable[[bytes, Sequence[Any]], object]
"""Raises for the text of states, of these owners, that does not fit."""


def adopt_state(
    group: WorkerGroup,
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    parameters: Sequence[Tensor],
    givers: Sequence[str] = (),
    stateful: Sequence[Any] = (),
    check: StateRule | None = None,
) -> bool:
    """Every worker takes over one's parameters, buffers, optimizer and scheduler states; a collective call.

    Whose: that of the first of `givers` that is still a member, or worker 0's. `stateful`: what else has a state.
    What a remote worker hands over is checked first, and taken when all of it is there. False: only remote workers had
    it, and they are lost; everything is as it was.
    """
    remote = bool(givers) and all(group.session.remote(giver) for giver in givers)
    while not remote or any(giver in group.session.view for giver in givers):
        try:
            if _adopt(group, models, optimizers, parameters, givers, stateful, check):
                return True
        except GiverLost:
            if not remote:
                raise
        # the giver was lost in the middle: another one's, from the beginning
    return False


def _adopt(
    group: WorkerGroup,
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    parameters: Sequence[Tensor],
    givers: Sequence[str],
    stateful: Sequence[Any],
    check: StateRule | None,
) -> bool:
    giver = group.giver(givers)
    name = group.session.view.members[giver]
    own = [*parameters, *(buffer for model in models for buffer in model.buffers())]
    remote = group.session.remote(name) and group.rank != giver
    # a remote giver may be lost, or lie, in the middle
    taken = [tensor.detach().clone() for tensor in own] if remote else own
    group.broadcast(taken, givers)
    begun = group.session.committed_view
    owners: list[Any] = [*optimizers, *stateful, *schedulers(optimizers)]
    tensors: list[Tensor] = []
    text = b""
    if gives := group.rank == group.giver(givers):
        text = msgspec.json.encode(flatten([owner.state_dict() for owner in owners], tensors))
    # the text first: the others make tensors by it, which the broadcast below fills
    words = group.gather(text, check=(lambda said: check(said, owners)) if check else None)
    said = dict(zip(group.session.committed_view.members, words, strict=False)).get(name, b"")
    if not said:
        return False
    states = msgspec.json.decode(said)
    if not gives:
        states = restore(states, tensors)
    group.broadcast(tensors, givers)
    if group.session.committed_view != begun:  # the parameters of one giver and the state of another would not fit
        return False
    if remote:
        for tensor, value in zip(own, taken, strict=True):
            tensor.detach().copy_(value)
    if not gives:
        for owner, state in zip(owners, states, strict=False):
            owner.load_state_dict(patch(state, owner.state_dict()))
    return True


def adopt_gradients(group: WorkerGroup, parameters: Sequence[Tensor], givers: Sequence[str] = ()) -> None:
    """Every worker takes over the giver's gradients, or their absence; a collective call. Sparse ones stay."""
    mine = bytes(0 if p.grad is None else 1 + p.grad.is_sparse for p in parameters)

    def check(said: bytes) -> None:
        if len(said) != len(mine) or any(kind > 2 for kind in said):
            raise PayloadError(f"{len(said)} gradients are told of, and there are {len(mine)}")

    kinds = group.gather(mine, check=check)[group.giver(givers)]
    for parameter, kind in zip(parameters, kinds, strict=True):
        if kind == 0:
            parameter.grad = None
        elif kind == 1 and (parameter.grad is None or parameter.grad.is_sparse):
            parameter.grad = torch.zeros_like(parameter)
    dense = [p.grad for p, kind in zip(parameters, kinds, strict=True) if kind == 1]
    group.broadcast([gradient for gradient in dense if gradient is not None], givers)


_MOVING = {"last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "best", "num_bad_epochs",
           "cooldown_counter", "T_cur", "T_i"}  # fmt: skip
"""What changes in a scheduler as it steps: two workers may be a step apart when they compare."""


def schedulers(optimizers: Sequence[Optimizer]) -> list[LRScheduler]:
    """The learning-rate schedulers that drive these optimizers, in an order all workers agree on.

    An optimizer does not know its schedulers, but they hold it. This is asked once per epoch at the most.
    """
    found = []
    for optimizer in optimizers:
        holders = [h if isinstance(h, LRScheduler) else _owner(h) for h in gc.get_referrers(optimizer)]
        mine = {id(h): h for h in holders if isinstance(h, LRScheduler) and h.optimizer is optimizer}
        # the garbage collector lists them in no particular order
        found += sorted(mine.values(), key=_order)
    return found


def _order(scheduler: LRScheduler) -> tuple[str, str, int]:
    fixed = {key: item for key, item in scheduler.state_dict().items() if key not in _MOVING}
    return type(scheduler).__name__, repr(flatten(fixed, [])), scheduler.last_epoch


def _owner(holder: object) -> object:
    """The object whose attributes `holder` is, if it is such a dictionary."""
    # a scheduler may hold the optimizer through the dictionary of its attributes
    if isinstance(holder, dict) and "optimizer" in holder:
        return next((o for o in gc.get_referrers(holder) if isinstance(o, LRScheduler) and vars(o) is holder), None)
    return None
