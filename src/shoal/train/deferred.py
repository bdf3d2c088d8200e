"""Updates that are made when somebody needs them: `order(needed)` on the side of the optimizer.

    optimizer.step()           parameters whose gradients are on their way are left out, and watched (sync/touch.py)
    any touch of one of them   waits for its bucket, then the optimizer's own step is made for the bucket's parameters,
                               with the learning rates, and whatever else its groups said, of the moment of the step

So a forward pass waits for each layer just before it is used, and a checkpoint, an evaluation or a script that looks at
weights sees what it would have seen. Updates of a parameter depend on nothing but that parameter, its gradient and its
state, so the parts of a step are the step. Where that is not so, or somebody looks at the step as a whole, everything
is waited for before the step, and the record says why.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from shoal.core.clock import now
from shoal.core.errors import DivergedError
from shoal.sync import touch
from shoal.sync.lockstep.needed import NeededOrderSynchronizer
from shoal.train.members import JoinedMembers
from shoal.train.numerics import finite

_NAMES = "SGD Adam AdamW Adamax NAdam RAdam Adagrad Adadelta RMSprop Rprop ASGD Adafactor"
SEPARABLE = {getattr(torch.optim, name) for name in _NAMES.split()}
"""Optimizers that update each parameter by itself."""
OWN_HOOKS = 2
"""That a join puts round a step: one before, one after."""


@dataclass
class DeferredUpdate:
    """A part of a step that is still to be made."""

    optimizer: Optimizer
    settings: list[dict[str, Any]]
    """Of every group, as they were at the step; shared by the parts of a step."""
    parts: list[list[Tensor]]
    """Of every group: the parameters of this part."""

    @property
    def parameters(self) -> list[Tensor]:
        return [parameter for part in self.parts for parameter in part]


class DeferredUpdates:
    """Of one join. `tell` is called with every reason for not deferring, once; `spent` with seconds of updates."""

    def __init__(
        self,
        members: JoinedMembers,
        synchronizer: NeededOrderSynchronizer,
        tell: Callable[[str], None],
        spent: Callable[[float], None],
    ) -> None:
        self.members, self.synchronizer, self._tell, self._spent = members, synchronizer, tell, spent
        self._index = {id(parameter): index for index, parameter in enumerate(members.parameters)}
        self._updates: dict[int, list[DeferredUpdate]] = {}
        self._taken: list[tuple[Tensor, Tensor, int]] = []
        """During a step: parameters that are left out, their gradients to come, and the buckets these lie in."""
        self._told: set[str] = set()
        synchronizer.bring = self.settle  # type: ignore[method-assign]
        for optimizer in members.optimizers:  # its state belongs to the parameters: whoever asks for it touches them
            optimizer.register_state_dict_pre_hook(lambda _: self.settle_all())
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.settle_all())

    def put_off(self, optimizer: Optimizer, closure: bool) -> bool:
        """Before a step: leave out what is not there yet. False: all is there, and the step is as any other."""
        reason = self._obstacle(optimizer, closure)
        # the word tells of all workers whether gradients are finite; it leaves before the other buckets
        self.synchronizer.finish_bucket(self.synchronizer.word)
        if reason and reason not in self._told:
            self._told.add(reason)
            self._tell(f"order(needed) waits for all gradients before a step: {reason}")
        mine = [(n, p) for n, group in enumerate(optimizer.param_groups) for p in group["params"]]
        there = [p.grad for _, p in mine if p.grad is not None and self._pending(p) is None]
        if reason or self.synchronizer.spoiled or not finite(there):
            self.settle_all()
            return False
        # copied now: a scheduler may change them before the parts are made
        settings = [_settings(group) for group in optimizer.param_groups]
        parts: dict[int, DeferredUpdate] = {}
        for group, parameter in mine:
            found = self._pending(parameter)
            if found is not None and parameter.grad is found[1]:  # else the script has put something in its place
                bucket, gradient = found
                if bucket not in parts:
                    parts[bucket] = DeferredUpdate(optimizer, settings, [[] for _ in settings])
                parts[bucket].parts[group].append(parameter)
                self._taken.append((parameter, gradient, bucket))
                # torch's optimizers pass over parameters without a gradient
                parameter.grad = None
        for bucket, update in parts.items():
            self._updates.setdefault(bucket, []).append(update)
        return True

    def stepped(self) -> None:
        """After a step: what was left out waits to be touched."""
        for parameter, gradient, bucket in self._taken:
            parameter.grad = gradient
            self.synchronizer.need(parameter, bucket)
        self._taken.clear()

    def settle(self, number: int) -> None:
        """Wait for a bucket, and make what was put off of it."""
        updates = self._updates.pop(number, [])
        for update in updates:
            for parameter in update.parameters:
                # first: the update itself touches them
                touch.release(parameter)
        places = {id(p): found[1] for u in updates for p in u.parameters if (found := self._pending(p)) is not None}
        self.synchronizer.finish_bucket(number)
        _check(list(places.values()))
        for update in updates:
            began = now()
            _make(update, places)
            self._spent(now() - began)

    def _pending(self, parameter: Tensor) -> tuple[int, Tensor] | None:
        """The bucket a parameter waits for, and where its gradient will be."""
        return self.synchronizer.pending_of(self._index.get(id(parameter), -1))

    def settle_all(self) -> None:
        """Make everything that was put off."""
        self.synchronizer.settle()

    def _obstacle(self, optimizer: Optimizer, closure: bool) -> str:
        """Why this step cannot be made in parts; empty if it can."""
        kind = type(optimizer).__name__
        hooks = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
        everywhere = torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks
        if closure:
            return f"{kind}.step was given a closure"
        if type(optimizer) not in SEPARABLE:
            return f"{kind} may look at all gradients together"
        if hooks > OWN_HOOKS or everywhere:
            return f"there are hooks round {kind}.step"
        if any(group.get("differentiable") for group in optimizer.param_groups):
            return f"{kind} is differentiable"
        if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
            return f"a GradScaler works inside {kind}.step"
        if not all(touch.can_watch(p) for group in optimizer.param_groups for p in group["params"]):
            return "a parameter is of a class of its own"
        return "a model is compiled or scripted" if self._compiled() else ""

    def _compiled(self) -> bool:
        """Whether somebody may use parameters behind torch's back."""
        from torch._dynamo import eval_frame  # imported by the first optimizer's step anyway

        if any(backend is not None for backend in eval_frame.cached_backends.values()):
            return True
        return any(isinstance(m, torch.jit.ScriptModule) for model in self.members.models for m in model.modules())


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """What a group says besides its parameters; a learning rate may be a tensor that changes in place."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value for name, value in group.items() if name != "params"
    }


def _check(gradients: Sequence[Tensor]) -> None:
    """Each worker's own were finite, so the sum is too large: what is updated already cannot be taken back."""
    if not finite(gradients):
        raise DivergedError(
            "the sum of the workers' gradients is not finite though each is, and under order(needed) a part of the "
            "step may be made already; lower the learning rate, or use order(ready), which leaves such steps out"
        )


def _make(update: DeferredUpdate, gradients: dict[int, Tensor]) -> None:
    """The optimizer's own step, for some parameters, without anybody's hooks."""
    optimizer = update.optimizer
    kept = [(parameter, parameter.grad) for parameter in update.parameters]
    groups = optimizer.param_groups
    parts = zip(update.settings, update.parts, strict=True)
    try:
        for parameter in update.parameters:
            parameter.grad = gradients[id(parameter)]
        optimizer.param_groups = [{**settings, "params": part} for settings, part in parts]
        # inside an evaluation too: state made in inference mode could not be updated outside of it
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            # without the wrapper in which torch calls the hooks of a step
            type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]
    finally:
        optimizer.param_groups = groups
        for parameter, gradient in kept:
            parameter.grad = gradient
