"""A tensor that is two: what the script computes from a model's output is computed a second time, from another output.

    model(x) ----> Twin(here, there) --F.cross_entropy(·, y)--> Twin(loss here, loss there) --backward()--> both

`here` is what the script sees: shapes, numbers, comparisons and prints are its. `there` is the same model on the same
samples at other weights, whose loss only the script can compute. Whoever made the twin is told at `backward()`, and the
script's own pass runs inside. What has no gradient leaves as a plain tensor.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

Told = Callable[[Tensor, Any, bool], AbstractContextManager[None]]
"""Gets the other loss, the `gradient` and the `retain_graph` of the script's call; its own pass runs inside."""


class TwinTensor(Tensor):
    """See above; made by `pair`."""

    here: Tensor
    there: Tensor
    told: Told

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return _backward(*args, **kwargs)
        result = func(*_side("here", args), **_side("here", kwargs))
        if not _trains(result):
            return result
        other = func(*_side("there", args), **_side("there", kwargs))
        return pair(result, other, _told((args, kwargs)))


def pair(here: Any, there: Any, told: Told) -> Any:
    """Twins of two results of one shape: tensors, or tuples, lists and dictionaries of them."""
    if isinstance(here, Tensor) and isinstance(there, Tensor):
        if not here.requires_grad:
            return here
        twin = here.as_subclass(TwinTensor)
        twin.here, twin.there, twin.told = here, there, told
        return twin
    if isinstance(here, dict) and isinstance(there, dict):
        return type(here)((key, pair(value, there[key], told)) for key, value in here.items())
    if isinstance(here, list | tuple) and isinstance(there, list | tuple):
        both = [pair(one, other, told) for one, other in zip(here, there, strict=True)]
        return type(here)(*both) if hasattr(here, "_fields") else type(here)(both)
    return here


def _side(side: str, values: Any) -> Any:
    return tree_map_only(TwinTensor, lambda twin: getattr(twin, side), values)


def _trains(result: Any) -> bool:
    """Whether there is something in it to go backward from."""
    found: list[Tensor] = []
    tree_map_only(Tensor, found.append, result)
    return any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in found)


def _told(values: Any) -> Told:
    found: list[TwinTensor] = []
    tree_map_only(TwinTensor, found.append, values)
    return found[0].told


def _backward(
    loss: TwinTensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    # torch's own default for `retain_graph`
    retain = create_graph if retain_graph is None else retain_graph
    with loss.told(loss.there, _side("there", gradient), retain):
        torch.autograd.backward(loss.here, _side("here", gradient), retain_graph, create_graph, inputs=inputs)
