"""What a synchronizer carries from step to step, and how it is dealt again when members change.

    equal    the same on all workers: any one's is everybody's      momentum of an outer step, a choice that was made
    sum      a share of a total that must not change                residuals of error feedback
    mean     each worker has its own estimate of the same thing     a running average

A checkpoint keeps the rule beside the tensor, so that another number of workers can go on from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from shoal.core.errors import UsageError

MergeRule = Literal["equal", "sum", "mean"]


@dataclass(frozen=True)
class StateTensor:
    """One tensor of a state. `values` is the live tensor: whoever keeps it copies it."""

    values: Tensor
    merge: MergeRule

    def __post_init__(self) -> None:
        if self.merge not in get_args(MergeRule):
            raise UsageError(f"merge={self.merge!r} is no rule; use one of {', '.join(get_args(MergeRule))}")


State = Mapping[str, StateTensor]


def redistribute(states: Sequence[State], workers: int) -> dict[str, StateTensor]:
    """The state each of `workers` workers goes on with, from those of all workers before."""
    if not states or workers < 1:
        raise UsageError(f"{len(states)} states cannot be dealt to {workers} workers; both must be 1 or more")
    kinds = [{name: (one.merge, one.values.shape) for name, one in state.items()} for state in states]
    if any(kind != kinds[0] for kind in kinds):
        raise UsageError("states of different models or plans cannot be merged; use those of one run")
    return {name: _merge([state[name] for state in states], workers) for name in states[0]}


def _merge(parts: Sequence[StateTensor], workers: int) -> StateTensor:
    rule = parts[0].merge
    if rule == "equal":
        return StateTensor(parts[0].values.clone(), rule)
    total = torch.stack([part.values for part in parts]).sum(0)
    # shares must add up to the same total, among however many workers
    return StateTensor(total / (workers if rule == "sum" else len(parts)), rule)
