"""Listens to autograd: tells a pace when a backward pass begins, which gradients are complete, and when it ends.

A pass begins with its first gradient, so a pass that reaches no parameter is no exchange. `quiet` passes add up in
`p.grad` and are told to nobody. A `share` other than 1 scales a worker's gradients before they add up: a worker with
fewer samples counts less.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from shoal.sync.pace.base import Pace


class Backward:
    """The hooks on one set of parameters."""

    def __init__(self, parameters: Sequence[Tensor], pace: Pace) -> None:
        self.parameters, self.pace = parameters, pace
        self.quiet = False
        self._running = False
        self._share = 1.0
        self._scaling: list[RemovableHandle] = []
        self._handles = [self._listen(index, parameter) for index, parameter in enumerate(parameters)]

    def _listen(self, index: int, parameter: Tensor) -> RemovableHandle:
        """Frozen parameters get their hook too, so that they may be thawed at any time."""
        trained = parameter.requires_grad
        parameter.requires_grad_(True)
        handle = parameter.register_post_accumulate_grad_hook(partial(self._arrived, index))
        parameter.requires_grad_(trained)
        return handle  # type: ignore[no-any-return]

    def _arrived(self, index: int, parameter: Tensor) -> None:
        if self.quiet:
            return
        if not self._running:
            self._running = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finished)  # type: ignore[attr-defined]
            self.pace.begun()
        self.pace.ready(index)

    def _finished(self) -> None:
        try:
            self.pace.ended()
        finally:
            self._running = False

    def abandon(self) -> None:
        """Forget a pass that an exception ended."""
        self._running = False

    def weigh(self, share: float) -> None:
        """Scale the gradients of the passes to come; 1 costs nothing."""
        if share == self._share:
            return
        self._share = share
        for handle in self._scaling:
            handle.remove()
        self._scaling = []
        if share != 1.0:
            self._scaling = [p.register_hook(partial(_scale, share)) for p in self.parameters if p.requires_grad]

    def remove(self) -> None:
        """Let go of the parameters."""
        for handle in (*self._handles, *self._scaling):
            handle.remove()


def _scale(share: float, gradient: Tensor) -> Tensor:
    return gradient * share
