"""Rules of `shared`: what may stand beside one copy of the parameters, and beside a copy on each host."""

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.terms import EveryTerm, LocalTerm, SharedTerm


def shared_sends_nothing(plan: Plan, workers: int) -> None:
    if not isinstance(plan.exchange, SharedTerm):
        return
    if plan.exchange.clusters > workers > 1:
        raise UsageError(
            f"'{plan.exchange}' has more clusters than the {workers} workers; write clusters={workers} or less"
        )
    if plan.exchange.hold > 1 and plan.exchange.clusters == 1:
        raise UsageError(f"'{plan.exchange}' has one copy and no token to hold; write clusters=2, or remove hold")
    if plan.balance.shares == "auto":
        raise UsageError(f"'{plan.balance}' is for workers that wait in every step; under '{plan.exchange}' remove it")
    if isinstance(plan.pace, LocalTerm):  # a copy on each host
        return
    if plan.wire:
        raise UsageError(
            f"'{plan.wire[0]}' says what travels, but under '{plan.exchange}' nothing does; remove it, or average "
            f"between hosts: shared, local(16), {plan.wire[0]}"
        )
    if plan.pace != EveryTerm():
        raise UsageError(
            f"'{plan.pace}' says when replicas agree, but '{plan.exchange}' has one copy for all; remove one of the "
            "two, or write shared, local(16)"
        )


def copies_of_hosts_are_averaged(plan: Plan, workers: int) -> None:
    """`shared, local(…)`: what a round does to a replica it does to a copy that several workers hold."""
    if not (isinstance(plan.exchange, SharedTerm) and isinstance(plan.pace, LocalTerm)):
        return
    pace, way_out = plan.pace, f"write shared, local({plan.pace.first_steps}, average)"
    if plan.exchange.clusters > 1:
        why = f"each host has one copy whose change is averaged; {way_out}, or shared(clusters=2) on one host"
    elif plan.exchange != SharedTerm():
        why = f"the copies are averaged after the steps of {pace.name}; write shared, {pace}"
    elif pace.outer in ("easgd", "sma"):
        why = f"{pace.outer} keeps replicas different, and a host has one copy for all its workers; {way_out}"
    elif pace.steps == "auto":
        why = f"auto measures workers that have a replica each; {way_out}"
    elif pace.streams:
        why = f"a round begins where all have stopped to write, so it cannot travel meanwhile; {way_out}"
    elif pace.state != "keep":
        why = f"state={pace.state} is for optimizers of one worker, and a host's copy includes their state; {way_out}"
    else:
        return
    raise UsageError(f"'{plan.exchange}' with '{pace}': {why}")
