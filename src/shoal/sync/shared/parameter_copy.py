"""Tensors of a model and of its optimizers, in memory that the workers of one host share.

    | filled, token | steps of each slot | copy 0: tensors, each from a cache line on | copy 1 | … | known 0 | …

A worker trains on tensors of its own until it attaches; then its parameters and its optimizers' state are views of this
memory. Whoever attaches before the copy is filled writes what it has, which is the same on all workers; later ones only
look. A worker that is killed leaves everything in place, and the one that takes its slot counts on from its steps.
There is one copy for all workers, or one for each cluster of them, each with what it last passed on (`known`).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.groups.shared_memory import SharedGroup
from shoal.sync.engine.slot_flags import LINE, Flags, round_to_lines, tensor_at
from shoal.sync.shared.optimizer_state import make_initial_state

Held = tuple[Optimizer, Tensor, str, Tensor]
"""A tensor of an optimizer's state: whose, of which parameter, its name, and what it is before the first step."""


class SharedTensors:
    """The memory of one copy."""

    def __init__(self, memory: memoryview, like: Sequence[Tensor]) -> None:
        self.views: list[Tensor] = []
        at = 0
        for tensor in like:
            self.views.append(_view(memory, at, tensor))
            at += round_to_lines(tensor.numel() * tensor.element_size())

    @staticmethod
    def bytes_for(like: Sequence[Tensor]) -> int:
        return sum(round_to_lines(tensor.numel() * tensor.element_size()) for tensor in like)


class SharedParameters:
    """The parameters and optimizers of one join, as one worker sees them. Used by the training thread."""

    def __init__(
        self, group: SharedGroup, parameters: Sequence[Tensor], optimizers: Sequence[Optimizer], clusters: int = 1
    ) -> None:
        """Take the memory for them; every worker calls this in the same order."""
        self.group, self.parameters, self.optimizers, self.clusters = group, parameters, optimizers, clusters
        for parameter in parameters:
            _check(parameter)
        self._held = list(_held(optimizers))
        like = [*parameters, *(initial for _, _, _, initial in self._held)]
        head, size = LINE * (1 + group.slots), SharedTensors.bytes_for(like)
        known = SharedTensors.bytes_for(parameters) if clusters > 1 else 0
        memory = group.region(head + clusters * (size + known))
        words = np.frombuffer(memory, np.int64, head // 8).reshape(1 + group.slots, -1)
        self._filled: Flags = words[0, :1]
        self.token: Flags = words[0, 1:2]
        """The cluster whose turn it is to pass its changes on."""
        self._steps: Flags = words[1:, 0]
        self._copies = [SharedTensors(memory[head + n * size :], like).views for n in range(clusters)]
        places = [head + clusters * size + n * known for n in range(clusters if known else 0)]
        self.known = [SharedTensors(memory[place:], parameters).views for place in places]
        """Of each cluster: its parameters when it last passed its changes on. Any of its workers may have done so."""
        self.cluster = self.cluster_of(group.slot)
        own = self._copies[self.cluster]
        self._own, self._states = own[: len(parameters)], own[len(parameters) :]
        self._known = {id(parameter) for parameter in parameters}
        self.attached = False

    def cluster_of(self, slot: int) -> int:
        """Return which copy a slot trains on: neighbours share one."""
        return slot * self.clusters // self.group.slots

    def values(self, cluster: int) -> list[Tensor]:
        """Return the parameters of a cluster's copy."""
        return self._copies[cluster][: len(self.parameters)]

    @property
    def is_filled(self) -> bool:
        """Whether some worker may have trained on it."""
        return bool(self._filled[0])

    def fill(self) -> None:
        """Write what this worker has; all that do so have the same, and none trains yet."""
        found = [parameter.detach() for parameter in self.parameters]
        for optimizer, parameter, name, initial in self._held:
            kept = optimizer.state.get(parameter, {}).get(name)
            found.append(initial if kept is None else kept)
        for copy in [*self._copies, *self.known]:
            for shared, value in zip(copy, found, strict=False):  # `known` is of parameters alone
                shared.copy_(value)

    def attach(self) -> None:
        """Train on the copy from now on; what this worker had is forgotten."""
        self._filled[0] = 1
        for parameter, shared in zip(self.parameters, self._own, strict=True):
            parameter.data = shared
        for (optimizer, parameter, name, _), shared in zip(self._held, self._states, strict=True):
            optimizer.state[parameter][name] = shared
        self.attached = True

    def check(self, optimizer: Optimizer) -> None:
        """Before a step: take over a state that the script has put in place of the shared one, or emptied."""
        for (owner, parameter, name, initial), shared in zip(self._held, self._states, strict=True):
            if owner is not optimizer:
                continue
            state = optimizer.state[parameter]
            if state.get(name) is not shared:
                shared.copy_(state.get(name, initial))
                state[name] = shared
        for options in optimizer.param_groups:
            for parameter in options["params"]:
                if id(parameter) not in self._known:
                    raise UsageError(
                        f"optimizer.step(): a parameter of shape {list(parameter.shape)} came into the optimizer after "
                        "join(), so it is not in the shared copy; add it before join()"
                    )

    def count_step(self) -> None:
        """This worker's step is in the copy."""
        self._steps[self.group.slot] += 1

    def steps(self) -> list[int]:
        """Steps that each slot has made since the run began."""
        return [int(count) for count in self._steps]


def _held(optimizers: Sequence[Optimizer]) -> Iterator[Held]:
    for optimizer in optimizers:
        for options in optimizer.param_groups:
            for parameter in options["params"]:
                for name, initial in make_initial_state(optimizer, options, parameter).items():
                    yield optimizer, parameter, name, initial


def _check(parameter: Tensor) -> None:
    if parameter.device.type != "cpu":
        raise UsageError(
            f"'shared' keeps parameters in the host's memory, and one of shape {list(parameter.shape)} lies on "
            f"{parameter.device}; train on the CPU, or write allreduce"
        )


def _view(memory: memoryview, start: int, like: Tensor) -> Tensor:
    """Return a tensor in `memory` with the sizes, and if it is dense the strides, of `like`."""
    numel = like.numel()
    if not numel:
        return torch.empty_like(like, requires_grad=False)
    flat = tensor_at(memory, start, like.dtype, numel)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(like.size(), like.stride(), strict=True))
    return flat.as_strided(like.size(), like.stride()) if extent == numel else flat.view(like.size())
