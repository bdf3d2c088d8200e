"""Tensors whose content is not there yet: the first use anywhere in a script waits for it.

    watch(parameter, act)      from now on its content is out of date
    F.linear(x, parameter)     any use of it through torch: `act` brings it up to date, then the function runs

A watched tensor gets a subclass, as a lazy parameter of torch has until its shape is known, and gets its own class back
when it is used or released, so a tensor that is not watched costs nothing. Reading its shape, dtype or `.grad` is no
use. What reads memory without torch's dispatcher (a compiled or scripted model, an extension in C++) is not seen: do
not watch parameters of such a model.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Act = Callable[[], None]

_acts: dict[int, Act] = {}
"""By identity; the caller of `watch` keeps the tensor alive."""
_names = "grad requires_grad is_leaf shape dtype device layout is_sparse is_cuda ndim grad_fn _version nbytes itemsize"
HARMLESS = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _names.split()),
        *(getattr(Tensor, name).__set__ for name in ("grad", "requires_grad")),
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.element_size, Tensor.stride, Tensor.__len__),
        *(Tensor.is_floating_point, Tensor.is_complex, Tensor.is_contiguous, Tensor.requires_grad_),
        *(torch.is_floating_point, torch.is_complex, torch.numel),
        *(Tensor.register_hook, Tensor.register_post_accumulate_grad_hook),
    ]
)
"""Functions that do not read a tensor's content."""


def _touched(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func in HARMLESS:
        # else the call would come back here
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    for tensor in list(_watched((*args, *kwargs.values()))):
        act = release(tensor)
        if act is not None:
            act()
    return func(*args, **kwargs)


def _watched(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, WatchedParameter | WatchedTensor):
            yield value
        # functions such as torch.cat take tensors in lists
        elif isinstance(value, list | tuple):
            yield from _watched(value)
        elif isinstance(value, dict):
            yield from _watched(value.values())


class WatchedParameter(nn.Parameter):
    """A parameter whose update is not made yet."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _touched(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self.detach()  # counts as a use: a plain parameter is copied
        return nn.Parameter.__deepcopy__(self, memo)  # type: ignore[no-untyped-call]


class WatchedTensor(Tensor):
    """A gradient that has not come yet, or a parameter that is no `nn.Parameter`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _touched(func, args, kwargs or {})


_KINDS: dict[type, type] = {nn.Parameter: WatchedParameter, Tensor: WatchedTensor}
_PLAIN = {watched: plain for plain, watched in _KINDS.items()}


def can_watch(tensor: Tensor) -> bool:
    """Return whether a tensor can be watched; subclasses already override the dispatch that this relies on."""
    return type(tensor) in _KINDS or type(tensor) in _PLAIN


def watch(tensor: Tensor, act: Act) -> None:
    """Call `act` when `tensor` is touched, once."""
    _acts[id(tensor)] = act
    tensor.__class__ = _KINDS.get(type(tensor), type(tensor))


def release(tensor: Tensor) -> Act | None:
    """Stop watching; return what would have been called, if the tensor was watched."""
    tensor.__class__ = _PLAIN.get(type(tensor), type(tensor))
    return _acts.pop(id(tensor), None)
