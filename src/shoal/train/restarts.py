"""Forward passes that are made again on fresher parameters, unseen by the script.

    model(x) ──> forward(x) ──> the synchronizer has pulled meanwhile: forward(x) again ──> output

Running statistics go back to what they were before the first pass, so a batch counts once in them. A pass whose inputs
the model has changed in place is not made again, nor one inside a compiled graph.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from shoal.sync.synchronizer import Synchronizer
from shoal.train.forward import StayingHook, add_hook, add_pre_hook


class ForwardRestarts:
    """Of one model."""

    def __init__(self, model: nn.Module, now: Callable[[], Synchronizer]) -> None:
        """`now`: the synchronizer of the plan that the workers train by."""
        self._now = now
        self._buffers: dict[str, Tensor] = {}
        self._inputs: list[int] = []
        """Versions of the input tensors: each change in place counts one up."""
        add_pre_hook(model, StayingHook(self._began), with_kwargs=True)
        # the first of all hooks: those of the script see what the script will get
        add_hook(model, StayingHook(self._ended), with_kwargs=True, prepend=True)

    def _began(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._may_restart():
            self._buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            self._inputs = _versions(args, kwargs)

    def _may_restart(self) -> bool:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return False
        return self._now().restarts_forwards

    def _ended(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not self._may_restart() or self._inputs != _versions(args, kwargs) or not self._now().forward_ended():
            return output
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(self._buffers[name])
        # not `model(…)`, which would call all hooks a second time
        return model.forward(*args, **kwargs)


def _versions(*given: Any) -> list[int]:
    # tensors made in inference mode have no version
    return [tensor._version for tensor in _tensors(given) if not tensor.is_inference()]


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, dict):
        yield from _tensors(list(given.values()))
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _tensors(each)
