"""From a plan's terms of precision to hooks on what was joined; refuses what a method cannot take, before training."""

from collections.abc import Callable

import torch
from torch import nn

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.precision import DorefaTerm, HalpTerm, WeightsTerm
from shoal.train.members import JoinedMembers
from shoal.train.precision.base import ModelPrecision
from shoal.train.precision.dorefa import LowBits
from shoal.train.precision.fixed import FixedPoint
from shoal.train.precision.halp import BitCentred


def build_precision(
    plan: Plan, members: JoinedMembers, seed: int, rank: int, samples: Callable[[], int]
) -> dict[str, ModelPrecision]:
    """By the terms' names. What is joined without an optimizer is not trained, and stays as it is."""
    made: dict[str, ModelPrecision] = {}
    if not members.optimizers:
        return made
    for term in plan.wire:
        if isinstance(term, WeightsTerm):
            made[term.name] = FixedPoint(term, members.optimizers, seed)
        elif isinstance(term, DorefaTerm):
            _refuse_compiled(term, members.models)
            made[term.name] = LowBits(term, members.models, seed, rank)
        elif isinstance(term, HalpTerm):
            _refuse_compiled(term, members.models)
            made[term.name] = _centred(term, members, seed, samples)
    return made


def _centred(term: HalpTerm, members: JoinedMembers, seed: int, samples: Callable[[], int]) -> BitCentred:
    models, optimizers = members.models, members.optimizers
    if (len(models), len(optimizers)) != (1, 1):
        raise UsageError(
            f"{term}: one model and one optimizer can be joined together, not {len(models)} and {len(optimizers)}; "
            "join each pair by itself"
        )
    if isinstance(optimizers[0], torch.optim.LBFGS):
        raise UsageError(f"{term}: LBFGS runs several passes in a step, and an anchor's gradient needs one; use SGD")
    return BitCentred(term, models[0], optimizers[0], seed, samples)


def _refuse_compiled(term: DorefaTerm | HalpTerm, models: list[nn.Module]) -> None:
    if any(isinstance(model, torch._dynamo.OptimizedModule) for model in models):
        raise UsageError(f"{term}: a compiled model stays as it was compiled; join the model without torch.compile")
