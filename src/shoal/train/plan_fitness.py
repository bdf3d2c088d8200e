"""Which plans cannot train what a script has joined, and why: the other half of `plan/needs.py`."""

from collections.abc import Callable, Mapping, Sequence

import torch

from shoal.core.errors import UsageError
from shoal.data.loader import ShardedLoader
from shoal.plan.needs import DELAYED, SENT, SERVED, SHARED, STEPS, check_joined
from shoal.plan.plan import Plan
from shoal.sync.server.server_pace import check_served
from shoal.sync.shared.optimizer_state import make_initial_state
from shoal.sync.shared.parameter_copy import check_shareable
from shoal.train.leased_rounds import UNLEASED
from shoal.train.members import JoinedMembers


def find_misfits(members: JoinedMembers) -> dict[str, str] | None:
    """Return need -> why these do not fit; None for a join without models and optimizers, which fits every plan."""
    if not (members.models or members.optimizers):
        return None
    return {need: why for need, look in LOOKS.items() if (why := look(members))}


def check_fitness(plan: Plan, joins: Sequence[JoinedMembers], loaders: Sequence[ShardedLoader]) -> None:
    """Raise UsageError if a run of these cannot be trained by this plan."""
    misfits = [found for found in map(find_misfits, joins) if found is not None]
    tensors = len(joins[0].parameters) if joins else 0
    check_joined(plan, misfits, [why_unleased(loader) for loader in loaders], tensors)


def why_unleased(loader: ShardedLoader) -> str:
    """Return why samples of this loader cannot be leased; empty if they can."""
    return UNLEASED if loader.facts[1] is None or loader.lease_batch is None else ""


def _look_for_steps(members: JoinedMembers) -> str:
    return "" if members.optimizers else "it counts optimizer steps, and join() got no optimizer"


def _look_at_served(members: JoinedMembers) -> str:
    return _why(lambda: check_served(members.names, members.parameters, members.optimizers))


def _look_at_shared(members: JoinedMembers) -> str:
    def check() -> None:
        for parameter in members.parameters:
            check_shareable(parameter)
        for optimizer in members.optimizers:
            for options in optimizer.param_groups:
                for parameter in options["params"][:1]:
                    make_initial_state(optimizer, options, parameter)

    return _why(check)


def _look_at_sent(members: JoinedMembers) -> str:
    for name, parameter in zip(members.names, members.parameters, strict=True):
        if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
            return f"it sends float32 from the host's memory, and {name!r} is {parameter.dtype} on {parameter.device}"
    return ""


def _look_at_delayed(members: JoinedMembers) -> str:
    if len(members.optimizers) != 1:
        return f"it delays the steps of one optimizer, and join() got {len(members.optimizers)}"
    return f"{members.names[members.sparse[0]]!r} has sparse gradients, which are not late" if members.sparse else ""


def _why(check: Callable[[], None]) -> str:
    try:
        check()
    except UsageError as error:
        return str(error)
    return ""


LOOKS: Mapping[str, Callable[[JoinedMembers], str]] = {
    STEPS: _look_for_steps,
    SERVED: _look_at_served,
    SHARED: _look_at_shared,
    SENT: _look_at_sent,
    DELAYED: _look_at_delayed,
}
