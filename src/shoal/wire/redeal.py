"""Share residuals out again when the number of workers changes: nothing that waits to be sent is lost.

A residual is a share of a sum, so all that counts is its total over workers: it is conserved, to float precision. What
an owner keeps of the sum of its share (`sync/aggregate/two_stage.py`) is part of the same total: it may wait at any
worker. What is the same on every worker (the factors of lowrank, how far a guard has tightened) stays as it is.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from shoal.core.errors import UsageError
from shoal.wire.codec import State
from shoal.wire.codecs import lowrank
from shoal.wire.wrappers.feedback import RESIDUAL

KEPT = (lowrank.KEPT, "guard.")
"""How names of what all workers hold alike begin."""
OWNER, PLACE = "owner", "owner_at"
"""An owner's residual of a piece of a layer, flat, and the element of the layer at which it begins."""


def folded(state: Mapping[str, Tensor]) -> State:
    """Return the state without owners: what waited there is added to the worker's own residual."""
    found = {name: tensor for name, tensor in state.items() if name.partition(".")[0] not in (OWNER, PLACE)}
    for name, kept in state.items():
        kind, _, layer = name.partition(".")
        place, own = state.get(f"{PLACE}.{layer}"), f"{RESIDUAL}.{layer}"
        if kind == OWNER and place is not None and own in found:
            found[own] = found[own].clone()
            found[own].view(-1)[int(place) : int(place) + kept.numel()] += kept.view(-1)
    return found


def merge(states: Sequence[State]) -> State:
    """Return one worker's state that holds what several held."""
    if not states:
        raise UsageError("no states to merge; give at least one worker's")
    first = states[0]
    for state in states:
        if {n: t.shape for n, t in state.items()} != {n: t.shape for n, t in first.items()}:
            raise UsageError("codec states of different models or plans cannot be merged; use those of one run")
    return {
        # Summed, not averaged: each worker's residual is its share of a sum that all still owe.
        n: t.clone() if n.startswith(KEPT) else torch.stack([s[n] for s in states]).sum(0)
        for n, t in first.items()
    }


def split(state: State, workers: int) -> list[State]:
    """Return equal shares for `workers` workers."""
    if workers < 1:
        raise UsageError(f"{workers} workers cannot share a residual; use 1 or more")
    return [{n: t.clone() if n.startswith(KEPT) else t / workers for n, t in state.items()} for _ in range(workers)]
