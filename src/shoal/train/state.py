"""State of models, optimizers and schedulers as plain text plus tensors, and taking over worker 0's.

Nothing in it can run code: the text is JSON, tensors are raw bytes in an order both sides derive from the text.
"""

import gc
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shoal.cluster.group import Group
from shoal.core.errors import LayoutError

_TENSOR = "\x00tensor"
_PAIRS = "\x00pairs"
_DTYPES = {str(d): d for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
                               torch.int16, torch.int8, torch.uint8, torch.bool)}  # fmt: skip


def flatten(value: Any, tensors: list[Tensor]) -> Any:
    """`value` as JSON-able data; tensors go to `tensors` and leave their dtype and shape; the rest becomes None."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return {_TENSOR: [str(value.dtype), list(value.shape)]}
    if isinstance(value, dict):
        return {_PAIRS: [[key, flatten(item, tensors)] for key, item in value.items() if isinstance(key, int | str)]}
    if isinstance(value, list | tuple):
        return [flatten(item, tensors) for item in value]
    return value if isinstance(value, bool | int | float | str) or value is None else None


def restore(value: Any, tensors: list[Tensor]) -> Any:
    """Undo `flatten`; makes empty tensors of the right shape and appends them to `tensors`, in order."""
    if isinstance(value, list):
        return [restore(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        name, shape = value[_TENSOR]
        if name not in _DTYPES:
            raise LayoutError(f"worker 0 holds a tensor of {name}, which is not one of {', '.join(_DTYPES)}")
        tensors.append(torch.empty(shape, dtype=_DTYPES[name]))
        return tensors[-1]
    return {key: restore(item, tensors) for key, item in value[_PAIRS]}


def adopt_state(
    group: Group, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], parameters: Sequence[Tensor]
) -> None:
    """Every worker takes over worker 0's parameters, buffers, optimizer and scheduler states; a collective call."""
    group.broadcast([*parameters, *(buffer for model in models for buffer in model.buffers())])
    schedulers = _schedulers(optimizers)
    tensors: list[Tensor] = []
    text = b""
    if group.rank == 0:
        states = [owner.state_dict() for owner in (*optimizers, *schedulers)]
        text = msgspec.json.encode(flatten(states, tensors))
    text = group.gather(text)[0]
    states = msgspec.json.decode(text)
    if group.rank != 0:
        tensors = []
        states = restore(states, tensors)
    group.broadcast(tensors)
    if group.rank != 0:
        for optimizer, state in zip(optimizers, states, strict=False):
            optimizer.load_state_dict(state)
        for scheduler, state in zip(schedulers, states[len(optimizers) :], strict=False):
            scheduler.load_state_dict({key: item for key, item in state.items() if item is not None})


def _schedulers(optimizers: Sequence[Optimizer]) -> list[LRScheduler]:
    """The learning-rate schedulers that drive these optimizers, in an order all workers agree on.

    An optimizer does not know its schedulers, but they hold it. This is asked once per epoch at the most.
    """
    found = []
    for optimizer in optimizers:
        holders = [h if isinstance(h, LRScheduler) else _owner(h) for h in gc.get_referrers(optimizer)]
        mine = {id(h): h for h in holders if isinstance(h, LRScheduler) and h.optimizer is optimizer}
        found += sorted(mine.values(), key=lambda s: (type(s).__name__, repr(sorted(vars(s))), s.last_epoch))
    return found


def _owner(holder: object) -> object:
    """The object whose attributes `holder` is, if it is such a dictionary."""
    if isinstance(holder, dict) and "optimizer" in holder:
        return next((o for o in gc.get_referrers(holder) if isinstance(o, LRScheduler) and vars(o) is holder), None)
    return None
