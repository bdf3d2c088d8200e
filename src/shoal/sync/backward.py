"""Listens to autograd: says when a backward pass begins, which gradients are complete, and when it ends.

A pass begins with its first gradient, so a pass that reaches no parameter makes no exchange. `quiet` passes add up in
`p.grad` without telling the pace; the worker then has `held` gradients back until the next exchange. A `share` other
than 1 scales a worker's gradients before they add up: a worker with fewer samples counts less.
"""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle


class BackwardListener(Protocol):
    """What is told of backward passes: a synchronizer, or what stands before one."""

    is_open_ended: bool

    def backward_began(self) -> None: ...

    def gradient_arriving(self) -> None: ...

    def gradient_ready(self, index: int) -> None: ...

    def backward_ended(self) -> None: ...


class BackwardHooks:
    """The hooks on one set of parameters."""

    def __init__(self, parameters: Sequence[Tensor], listener: BackwardListener) -> None:
        self.parameters, self.listener = parameters, listener
        self.quiet = False
        self.arrivals = 0
        """Gradients so far, held back or not; it differs after a backward pass."""
        self.held_indices: set[int] = set()
        """Parameters whose gradients quiet passes have left in `p.grad`."""
        self._pass: weakref.ref[_BackwardPass] | None = None
        self._share = self._held_share = 1.0
        self._scaling: list[RemovableHandle] = []
        self._nodes: list[Node] = []
        """Autograd nodes that add to `p.grad`; hooks on parameters would also scale what `autograd.grad` returns."""
        self._handles = self._hook(self._listen)
        if listener.is_open_ended:
            self._handles += self._hook(lambda _, p: p.register_hook(self._about))  # type: ignore[no-untyped-call]

    def _listen(self, index: int, parameter: Tensor) -> RemovableHandle:
        self._nodes.append(get_gradient_edge(parameter).node)
        return parameter.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-any-return, no-untyped-call]

    def _hook(self, register: Callable[[int, Tensor], RemovableHandle]) -> list[RemovableHandle]:
        """Frozen parameters get hooks too, so that they may be unfrozen at any time."""
        handles = []
        for index, parameter in enumerate(self.parameters):
            if parameter.is_floating_point() or parameter.is_complex():
                trained = parameter.requires_grad
                # torch registers hooks only on tensors that require a gradient
                parameter.requires_grad_(True)
                handles.append(register(index, parameter))
                parameter.requires_grad_(trained)
        return handles

    def _about(self, _gradient: Tensor) -> None:
        self.listener.gradient_arriving()

    def _arrived(self, index: int, parameter: Tensor) -> None:
        self.arrivals += 1
        if self.quiet:
            self.held_indices.add(index)
            return
        if not self.running:
            # autograd alone keeps the pass alive: when an exception ends it, this reference dies with it
            running = _BackwardPass(self._finished)
            self._pass = weakref.ref(running)
            # autograd calls this back when the whole pass has ended
            torch.autograd.Variable._execution_engine.queue_callback(running.end)
            self.listener.backward_began()
        self.listener.gradient_ready(index)

    def _finished(self) -> None:
        self._pass = None
        self.listener.backward_ended()
        self.held_indices.clear()

    @property
    def running(self) -> bool:
        """Whether a backward pass of these parameters is under way; not if an exception has ended it."""
        return self._pass is not None and self._pass() is not None

    @property
    def held(self) -> bool:
        """Whether quiet passes have left gradients that are still to be exchanged."""
        return bool(self.held_indices)

    def weigh(self, share: float, held: float | None = None) -> None:
        """Scale the gradients of later passes, by `held` if they add to gradients held back; 1 costs nothing."""
        self._share, self._held_share = share, share if held is None else held
        wanted = (self._share, self._held_share) != (1.0, 1.0)
        if wanted and not self._scaling:
            self._scaling = [node.register_prehook(self._scale) for node in self._nodes]
        elif not wanted:
            self._remove(self._scaling)

    def _scale(self, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(gradient if gradient is None else gradient * self.share for gradient in gradients)

    @property
    def share(self) -> float:
        """What a gradient that arrives now is multiplied by."""
        return self._held_share if self.quiet or self.held else self._share

    def remove(self) -> None:
        """Remove all hooks."""
        self._remove(self._handles)
        self._remove(self._scaling)

    def _remove(self, handles: list[RemovableHandle]) -> None:
        for handle in handles:
            handle.remove()
        handles.clear()


class _BackwardPass:
    """One backward pass, as long as autograd remembers it."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end_ = end

    def end(self) -> None:
        self.end_()
