"""Tensors of a model and of its optimizers, in memory that the workers of one host share.

    | of each slot: attached, steps | copy 0: tensors, each from a cache line on | copy 1 | …

There is one copy for all workers, or one for each cluster of them (`cluster_ring.py`). A worker trains on tensors of
its own until it attaches; then its parameters and its optimizers' state are views of this memory. Where no other member
is attached a worker writes what it has, which is the same on all workers; else it only looks. A worker that is killed
leaves everything in place, and the one that takes its slot counts on from its steps.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.groups.host_workers import CopyHost
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
        self, host: CopyHost, parameters: Sequence[Tensor], optimizers: Sequence[Optimizer], clusters: int = 1
    ) -> None:
        """Take the memory for them; every worker calls this in the same order. `clusters`: how many copies."""
        self.host, self.parameters, self.optimizers, self.clusters = host, parameters, optimizers, clusters
        for parameter in parameters:
            check_shareable(parameter)
        self._held = list(_held(optimizers))
        like = [*parameters, *(initial for _, _, _, initial in self._held)]
        slots = max(host.places) + 1
        head, size = LINE * slots, SharedTensors.bytes_for(like)
        memory = host.region(head + clusters * size)
        words = np.frombuffer(memory, np.int64, head // 8).reshape(slots, -1)
        self._attached: Flags = words[:, 0]
        self._steps: Flags = words[:, 1]
        self._attached[host.slot] = 0  # of a worker that had this slot before and was killed
        self._copies = [SharedTensors(memory[head + n * size :], like).views for n in range(clusters)]
        self.cluster = self.cluster_of(host.slot)
        own = self._copies[self.cluster]
        self._values, self._states = own[: len(parameters)], own[len(parameters) :]
        self._kept: dict[int, list[tuple[Tensor, str, Tensor, Tensor]]] = {id(each): [] for each in optimizers}
        """Of each optimizer: parameter, name, value before the first step, and the shared tensor."""
        for (owner, parameter, name, initial), shared in zip(self._held, self._states, strict=True):
            self._kept[id(owner)].append((parameter, name, initial, shared))
        self.attached = False

    def cluster_of(self, slot: int) -> int:
        """Return which copy a slot trains on: neighbours share one."""
        return list(self.host.places).index(slot) * self.clusters // len(self.host.places)

    def values_of(self, cluster: int) -> list[Tensor]:
        """Return the parameters in a cluster's copy."""
        return self._copies[cluster][: len(self.parameters)]

    @property
    def is_filled(self) -> bool:
        """Whether another member trains on it. Not whether anybody ever did: where all workers of a host were lost, the
        copy is older than what a newcomer was given."""
        return any(self._attached[slot] for slot in self.host.members if slot != self.host.slot)

    def fill(self) -> None:
        """Write what this worker has; all that do so have the same, and none trains yet."""
        found = [parameter.detach() for parameter in self.parameters]
        for optimizer, parameter, name, initial in self._held:
            kept = optimizer.state.get(parameter, {}).get(name)
            found.append(initial if kept is None else kept)
        for copy in self._copies:
            for shared, value in zip(copy, found, strict=True):
                shared.copy_(value)

    def attach(self) -> None:
        """Train on the copy from now on; what this worker had is forgotten."""
        self._attached[self.host.slot] = 1
        for parameter, shared in zip(self.parameters, self._values, strict=True):
            # `.data`, so that optimizers and hooks keep the tensor object they know
            parameter.data = shared
        for (optimizer, parameter, name, _), shared in zip(self._held, self._states, strict=True):
            optimizer.state[parameter][name] = shared
        self.attached = True

    def check(self, optimizer: Optimizer) -> None:
        """Before a step: take over a state that the script has put in place of the shared one, or emptied."""
        for parameter, name, initial, shared in self._kept[id(optimizer)]:
            state = optimizer.state[parameter]
            if state.get(name) is not shared:
                shared.copy_(state.get(name, initial))
                state[name] = shared

    def count_step(self) -> None:
        """This worker's step is in the copy."""
        self._steps[self.host.slot] += 1

    def steps(self) -> list[int]:
        """Steps that each slot has made since the run began."""
        return [int(count) for count in self._steps]


def _held(optimizers: Sequence[Optimizer]) -> Iterator[Held]:
    for optimizer in optimizers:
        for options in optimizer.param_groups:
            for parameter in options["params"]:
                for name, initial in make_initial_state(optimizer, options, parameter).items():
                    yield optimizer, parameter, name, initial


def check_shareable(parameter: Tensor) -> None:
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
