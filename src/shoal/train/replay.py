"""More hosts than cores: computing that is measured in the first steps and slept through afterwards.

    steps 0, 1          computed, not counted (caches, allocations)
    steps 2, 3, 4       computed and measured: forward, the moment of every gradient, update
    from step 5 on      forward sleeps and returns the last output; backward is a chain of links, one per parameter,
                        that sleep and hand out the last gradients, in the order and at the pace that was measured

Gradients stay real in size and leave when they would have, so communication is timed honestly; the model no longer
learns, and losses mean nothing. Only a model whose forward returns one tensor can be replayed.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.train.members import JoinedMembers

WARM, MEASURED = 2, 3


def replay(members: JoinedMembers, exchanging: Callable[[], float]) -> "ComputeReplay":
    """Replay what was joined; `exchanging` tells the seconds spent in exchanges so far."""
    if len(members.models) != 1:
        raise UsageError(f"a lab with compute='replay' needs one model in a join, not {len(members.models)}")
    return ComputeReplay(members.models[0], members.parameters, members.optimizers, exchanging)


class ComputeReplay:
    """One model and its optimizers, computed at first and then slept."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[Tensor],
        optimizers: Sequence[Optimizer],
        exchanging: Callable[[], float],
    ) -> None:
        self.model, self.parameters, self._exchanging = model, list(parameters), exchanging
        self._compute = model.forward
        model.forward = self._forward
        self._step = 0
        self._forwards: list[float] = []
        self._updates: list[float] = []
        self._arrivals: list[dict[int, float]] = []
        self._gradients: dict[int, Tensor] = {}
        self._output: Tensor | None = None
        self._rows: int | None = None
        self._handles = [p.register_hook(self._arrival(i)) for i, p in enumerate(parameters) if p.requires_grad]  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before_update)
            optimizer.register_step_post_hook(self._after_update)

    @property
    def replaying(self) -> bool:
        return self._step >= WARM + MEASURED

    def _forward(self, *inputs: Any, **named: Any) -> Any:
        # evaluations compute: only training is measured and slept through
        if not self.model.training or not torch.is_grad_enabled():
            return self._compute(*inputs, **named)
        if self.replaying and self._gradients:
            rows = _rows(inputs)
            time.sleep(statistics.median(self._forwards) * self._part(rows))
            return self._linked(rows)
        began = now()
        output = self._compute(*inputs, **named)
        if not isinstance(output, Tensor):
            raise UsageError(
                f"a lab with compute='replay' needs a model that returns one tensor, not {type(output).__name__}"
            )
        self._output = output.detach()
        self._rows = _rows(inputs)
        if self._step >= WARM:
            self._forwards.append(now() - began)
            self._arrivals.append({})
        self._began, self._before = now(), self._exchanging()
        return output

    def _arrival(self, index: int) -> Callable[[Tensor], None]:
        def arrived(gradient: Tensor) -> None:
            if not self.replaying and self._arrivals:
                # packing and waiting between two gradients is exchange: it is done again, and not slept
                self._arrivals[-1][index] = now() - self._began - (self._exchanging() - self._before)
                self._gradients[index] = gradient.detach().clone()

        return arrived

    def _part(self, rows: int | None) -> float:
        """A batch of `rows` by the one that was measured: passes take as long as their samples are many."""
        return rows / self._rows if rows and self._rows else 1.0

    def _linked(self, rows: int | None) -> Tensor:
        """The last output as the end of a chain through all parameters, the first to arrive nearest to it."""
        assert self._output is not None
        output = self._output
        if output.dim() and rows != self._rows:
            # as many rows as this batch has, repeated from those that were measured
            output = output[torch.arange(round(len(output) * self._part(rows))) % len(output)]
        chain = output.clone().requires_grad_()
        moments = {i: statistics.median(a[i] for a in self._arrivals if i in a) for i in self._gradients}
        order = sorted(moments, key=moments.__getitem__)
        pauses = [(moments[i] - (moments[order[n - 1]] if n else 0.0)) * self._part(rows) for n, i in enumerate(order)]
        # backward runs the link that was made last first
        for index, pause in zip(reversed(order), reversed(pauses), strict=True):
            chain = _ReplayedLayer.apply(chain, self.parameters[index], self._gradients[index], max(0.0, pause))  # type: ignore[no-untyped-call]
        return chain

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._update_began = now()
        if self.replaying:
            for parameter in self.parameters:  # nothing to do for the optimizer: what it would take is slept
                parameter.grad = None
            time.sleep(statistics.median(self._updates))

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        if not self.replaying and self._step >= WARM:
            self._updates.append(now() - self._update_began)
        self._step += 1
        if self.replaying:
            for handle in self._handles:
                handle.remove()
            self._handles = []


class _ReplayedLayer(torch.autograd.Function):
    """Passes its input on; on the way back sleeps and gives the parameter its gradient."""

    @staticmethod
    def forward(ctx: Any, chain: Tensor, parameter: Tensor, gradient: Tensor, pause: float) -> Tensor:
        ctx.gradient, ctx.pause = gradient, pause
        return chain.view_as(chain)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        time.sleep(ctx.pause)
        return gradients[0], ctx.gradient, None, None


def _rows(inputs: tuple[Any, ...]) -> int | None:
    first = inputs[0] if inputs else None
    return len(first) if isinstance(first, Tensor) and first.dim() else None
