"""Rules between the parts of a model: which plans may stand beside each other, and what must be the same in all.

Parts in lock-step are exchanged in one operation of the members, so a step happens for all of them or for none. Beside
them a part may lie on servers, which workers push to and pull from by themselves.
"""

from collections.abc import Callable

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.precision import PrecisionTerm
from shoal.plan.terms import AllReduceTerm, AsyncTerm, EveryTerm, ServerTerm, StaleTerm
from shoal.plan.wrappers import WireTerm


def check_parts(plan: Plan) -> None:
    """Raise UsageError for parts whose plans cannot stand beside each other; nothing for a plan without parts."""
    for rule in PART_RULES if plan.parts else ():
        rule(plan)


def is_served(plan: Plan) -> bool:
    """Whether this plan of a part keeps it on servers, with a pace of its own."""
    return isinstance(plan.exchange, ServerTerm) and isinstance(plan.pace, StaleTerm | AsyncTerm)


def parts_are_in_lockstep(plan: Plan) -> None:
    for part in plan.parts:
        if is_served(part.plan):
            continue
        if isinstance(part.plan.exchange, ServerTerm):
            raise UsageError(
                f"'{part.plan.pace}' with '{part.plan.exchange}' in part '{part.pattern}': a part on servers pushes "
                f"and pulls by itself; write {part.plan.exchange}, async, or allreduce for a part in lock-step"
            )
        if not isinstance(part.plan.exchange, AllReduceTerm):
            raise UsageError(
                f"'{part.plan.exchange}' in part '{part.pattern}': parts are exchanged together, by allreduce, or lie "
                "on servers; write allreduce, or server, async, or one plan for the whole model"
            )
        if part.plan.pace != EveryTerm():
            raise UsageError(
                f"'{part.plan.pace}' in part '{part.pattern}': samples are committed when all parts agree, so all "
                "agree at every step; write every(1), or one plan for the whole model"
            )


def servers_are_the_same(plan: Plan) -> None:
    for part in plan.parts:
        if is_served(part.plan) and part.plan.exchange != plan.servers:
            raise UsageError(
                f"'{part.plan.exchange}' in part '{part.pattern}' and '{plan.servers}' in another: a run has one set "
                "of servers, which keeps all such parts; write the same in both"
            )
    if all(is_served(part.plan) for part in plan.parts):
        raise UsageError(
            "all parts lie on servers, and steps are counted by a part in lock-step; end with '*: allreduce', or write "
            f"one plan for the whole model: '{plan.parts[0].plan}'"
        )


def parts_on_servers_are_plain(plan: Plan) -> None:
    """What a part on servers cannot have yet, with the reason."""
    for part in plan.parts:
        if not is_served(part.plan):
            continue
        pace, exchange = part.plan.pace, part.plan.exchange
        assert isinstance(exchange, ServerTerm)
        assert isinstance(pace, StaleTerm | AsyncTerm)
        where = f"in part '{part.pattern}'"
        if exchange.replicas > 1:
            raise UsageError(
                f"'{exchange}' {where}: rows are kept once, and a killed server takes the run back to its checkpoint; "
                "write replicas=1"
            )
        if part.plan.wire:
            raise UsageError(
                f"'{part.plan.wire[0]}' {where}: its rows travel as they are, because what a codec leaves out would "
                "lie on a worker that may not use the row again; remove it"
            )
        plain = StaleTerm(pace.bound) if isinstance(pace, StaleTerm) else AsyncTerm(rule=pace.rule, rate=pace.rate)
        if pace != plain:
            raise UsageError(
                f"'{pace}' {where}: its steps are those of the parts in lock-step, so it has no rounds, leases or "
                f"rates of its own; write {plain}"
            )


def parts_leave_in_one_order(plan: Plan) -> None:
    first = plan.parts[0]
    for part in plan.parts:
        ordered = part.plan.order.by in ("needed", "auto")
        if ordered and plan.servers is not None:
            raise UsageError(
                f"'{part.plan.order}' in part '{part.pattern}': steps stay open while the next one begins, and parts "
                "on servers push when a step is made; remove the order"
            )
    # Each against the first, which is enough for all to be the same.
    for part in plan.parts[1:]:
        overlapping = {first.plan.order.by, part.plan.order.by} & {"needed", "auto"}
        if overlapping and part.plan.order != first.plan.order:
            raise UsageError(
                f"'{first.plan.order}' in part '{first.pattern}' and '{part.plan.order}' in part '{part.pattern}': the "
                "next forward pass waits for all parts; write the same order in all"
            )


def parts_share_their_precision(plan: Plan) -> None:
    for part in plan.parts:
        for term in part.plan.wire:
            if isinstance(term, PrecisionTerm):
                raise UsageError(
                    f"'{term}' in part '{part.pattern}' says how the whole model is kept; write one plan for the model"
                )


def parts_choose_no_codec(plan: Plan) -> None:
    for part in plan.parts:
        for term in part.plan.wire:
            if isinstance(term, WireTerm):
                raise UsageError(
                    f"'{term}' in part '{part.pattern}' measures whole steps, so it chooses for the whole model; write "
                    "a codec: int8"
                )


PART_RULES: tuple[Callable[[Plan], None], ...] = (
    parts_are_in_lockstep,
    servers_are_the_same,
    parts_on_servers_are_plain,
    parts_leave_in_one_order,
    parts_share_their_precision,
    parts_choose_no_codec,
)
