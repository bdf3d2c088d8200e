"""Torch's hooks round `optimizer.step`: they drive `before_step` and `after_step` of a synchronizer.

before   the listener checks the step -> synchronizer.before_step
         REMOTE: the optimizer finds no gradients, so its step changes nothing
step     the script's own
after    gradients are put back -> synchronizer.after_step -> the listener notes what the step came to
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.sync.synchronizer import StepAction, Synchronizer
from shoal.train.closures import looks_at_loss, with_shared_loss
from shoal.train.progress import StepProgress


class StepListener(Protocol):
    """Told of every step; `closure`: whether the optimizer was given one, so that its gradients come inside it."""

    def before_step(self, optimizer: Optimizer, closure: bool) -> None: ...

    def after_step(self, optimizer: Optimizer, closure: bool) -> None: ...


class StepHooks:
    """Round the steps of a join's optimizers. `first`: the first optimizer's steps are the run's."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        synchronizer: Synchronizer,
        listener: StepListener,
        progress: StepProgress,
        first: bool,
        share_loss: Callable[[float], float] | None = None,
    ) -> None:
        """`share_loss` makes of this worker's loss that of all, for optimizers that look at it."""
        self.synchronizer, self.listener, self.progress = synchronizer, listener, progress
        self._counting = optimizers[0] if first and optimizers else None
        self._share_loss = share_loss
        self._suppressed = False
        self._taken: list[tuple[Tensor, Tensor]] = []
        """Parameters whose gradients were taken away from the step, and these."""
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._before)
            optimizer.register_step_post_hook(self._after)

    def replace(self, synchronizer: Synchronizer, share_loss: Callable[[float], float] | None) -> None:
        """Another plan, between two steps."""
        self.synchronizer, self._share_loss = synchronizer, share_loss

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._suppressed:
            return None
        closure = _has_closure(args, kwargs)
        self.listener.before_step(optimizer, closure)
        if self.synchronizer.before_step(optimizer) is StepAction.REMOTE:
            self._take_gradients(optimizer, closure)
        # last: what is waited for above is no part of the update
        self.progress.update_began()
        if self._share_loss is None or not closure or not looks_at_loss(optimizer):
            return None
        return with_shared_loss(args, kwargs, self._share_loss)

    def _take_gradients(self, optimizer: Optimizer, closure: bool) -> None:
        if closure:
            raise UsageError(
                f"{type(optimizer).__name__}.step was given a closure, which makes its gradients inside the step; "
                f"{type(self.synchronizer).__name__} needs them before: use an optimizer without a closure"
            )
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._taken = [(p, p.grad) for p in parameters if p.grad is not None]
        for parameter, _ in self._taken:
            parameter.grad = None

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._suppressed:
            return
        for parameter, gradient in self._taken:
            parameter.grad = gradient
        self._taken = []
        self.progress.update_ended(optimizer is self._counting)
        self.synchronizer.after_step(optimizer)
        self.listener.after_step(optimizer, _has_closure(args, kwargs))

    @contextmanager
    def suppressed(self) -> Iterator[None]:
        """Suppress step hooks inside this block."""
        self._suppressed = True
        try:
            yield
        finally:
            self._suppressed = False


def _has_closure(args: Any, kwargs: Any) -> bool:
    return any(given is not None for given in (*args[1:], *kwargs.values()))
