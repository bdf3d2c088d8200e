"""Tells when a joined model is called and when it returns: where its forward pass begins and ends."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class StayingHook:
    """A module's hook that stays behind when the model is copied or saved.

    A plain method as a hook would take the whole run along into `copy.deepcopy(model)` and `torch.save(model)`.
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        self.act = act

    def __call__(self, *given: Any) -> Any:
        return self.act(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return _deaf, ()


class CallHook(StayingHook):
    """One that only passes the module on."""

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if not torch.compiler.is_compiling():  # the clock has no place in a compiled graph
            self.act(module)


def _deaf() -> StayingHook:
    """What a copy of the model gets instead."""
    return StayingHook(_nothing)


def _nothing(*_: Any) -> None:
    pass


def listen(model: nn.Module, began: Callable[[nn.Module], None], ended: Callable[[nn.Module], None]) -> None:
    """Call `began` and `ended` round every call of `model`."""
    model.register_forward_pre_hook(CallHook(began))
    model.register_forward_hook(CallHook(ended))
