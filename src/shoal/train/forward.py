"""Forward hooks on joined modules that stay behind when the module is copied, pickled or saved.

    model.__getstate__     an attribute of this one module: its state without our hooks, and without this attribute

`copy` and `pickle` ask an object, not its class, for `__getstate__`, so the class and other modules stay as they are.
Global hooks of torch would leave the module alone too, but slow down every call of every submodule.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_FLAGS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
"""Of a module: hooks by their number, and what else is kept of each under the same number."""


class StayingHook:
    """A module's hook that no copy of the module has."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self.act = act

    def __call__(self, *given: Any) -> Any:
        return self.act(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        """For classes whose own `__reduce__` copies hooks (torch.fx): they must not take the run along."""
        return StayingHook, (_do_nothing,)


class CallHook(StayingHook):
    """One that only passes the module on."""

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if not torch.compiler.is_compiling():  # the clock has no place in a compiled graph
            self.act(module)


def _do_nothing(*_: Any) -> None:
    pass


class StateWithoutHooks:
    """`__getstate__` of one module; holds it weakly, so that the module is freed as soon as the script drops it."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self) -> Any:
        module = self._module()
        assert module is not None
        state = type(module).__getstate__(module)  # type: ignore[no-untyped-call]  # the class may have its own
        if isinstance(state, dict):
            return _without_hooks(state)
        if isinstance(state, tuple) and state and isinstance(state[0], dict):  # beside slots
            return (_without_hooks(state[0]), *state[1:])
        return state


def _without_hooks(state: dict[str, Any]) -> dict[str, Any]:
    ours = {number for name in _HOOKS for number, hook in state.get(name, {}).items() if isinstance(hook, StayingHook)}
    kept = {name: value for name, value in state.items() if not isinstance(value, StateWithoutHooks)}
    for name in (*_HOOKS, *_FLAGS):
        if name in kept:
            kept[name] = type(kept[name])((number, v) for number, v in kept[name].items() if number not in ours)
    return kept


def add_pre_hook(module: nn.Module, hook: StayingHook, **options: bool) -> RemovableHandle:
    """Call `hook` before every call of `module`."""
    vars(module)["__getstate__"] = StateWithoutHooks(module)
    return module.register_forward_pre_hook(hook, **options)


def add_hook(module: nn.Module, hook: StayingHook, **options: bool) -> RemovableHandle:
    """Call `hook` after every call of `module`."""
    vars(module)["__getstate__"] = StateWithoutHooks(module)
    return module.register_forward_hook(hook, **options)


def listen(model: nn.Module, began: Callable[[nn.Module], None], ended: Callable[[nn.Module], None]) -> None:
    """Call `began` and `ended` round every call of `model`."""
    add_pre_hook(model, CallHook(began))
    add_hook(model, CallHook(ended))
