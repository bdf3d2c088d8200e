"""Rules of parameter servers, and of the paces that come from them: what a server can add up, decode or wait for."""

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.precision import PrecisionTerm
from shoal.plan.terms import AllReduceTerm, AsyncTerm, DeadlineTerm, ServerTerm, StaleTerm
from shoal.plan.wrappers import MeetTerm
from shoal.wire.settings import CodecSettings

SERVED = StaleTerm | AsyncTerm | DeadlineTerm
"""Paces that parameter servers have; with all-reduce `stale(k)` has a meaning of its own."""


def servers_get_what_there_is(plan: Plan, workers: int) -> None:
    """Servers add up tensors, or decode pushes."""
    if not isinstance(plan.exchange, ServerTerm):
        if isinstance(plan.pace, SERVED) and not _delays_gradients(plan):
            raise UsageError(f"'{plan.pace}' is for parameter servers; write server, {plan.pace}")
        return
    if isinstance(plan.pace, SERVED):
        for term in plan.wire:
            if term.name == "dgc":
                raise UsageError(
                    f"'{term}' with '{plan.pace}': its momentum correction assumes that every worker gets the sum of "
                    "what all sent, and here each goes on with its own; remove one of the two"
                )
    if plan.order.by != "ready":
        raise UsageError(f"'{plan.order}' with '{plan.exchange}': servers answer in any order; remove the order")
    if isinstance(plan.pace, StaleTerm | AsyncTerm):
        _pushes_are_coded_alone(plan)
        return
    for term in plan.codecs:
        if not isinstance(term, PrecisionTerm):
            raise UsageError(
                f"'{term}' with '{plan.exchange}' and '{plan.pace}': servers add up gradients as they are; remove it, "
                "or write stale(0), whose pushes go through codecs, or allreduce"
            )


def _pushes_are_coded_alone(plan: Plan) -> None:
    """A server decodes each push by itself."""
    for term in plan.codecs:
        if isinstance(term, MeetTerm):
            raise UsageError(f"'{term}' with '{plan.pace}': a server decodes pushes one by one; remove it")
        if isinstance(term, CodecSettings) and term.sends_twice:
            raise UsageError(
                f"'{term}' with '{plan.pace}': its factors are sums over all workers, and a push is one worker's; "
                "write topk(0.01)"
            )


def changes_are_compared_with_values(plan: Plan, workers: int) -> None:
    """Only pushes of changes know which values they change."""
    for term in plan.codecs:
        if not (isinstance(term, CodecSettings) and term.compares):
            continue
        if not isinstance(plan.pace, StaleTerm | AsyncTerm):
            raise UsageError(
                f"'{term}' with '{plan.pace}': it compares changes with the parameters they change, which only pushes "
                f"to servers know; write server, stale(0), {term}, or topk(0.01)"
            )
        if isinstance(plan.pace, AsyncTerm) and plan.pace.rule != "add":
            raise UsageError(
                f"'{term}' with '{plan.pace}': gradients travel, whose size says nothing of how much a parameter will "
                f"change; write async, {term}, or topk(0.01)"
            )


def _delays_gradients(plan: Plan) -> bool:
    return isinstance(plan.pace, StaleTerm) and isinstance(plan.exchange, AllReduceTerm)


def a_delay_is_a_number_of_steps(plan: Plan, workers: int) -> None:
    """With all-reduce, stale(k) applies means k steps late; what else it says is for servers."""
    if not isinstance(plan.pace, StaleTerm) or not _delays_gradients(plan):
        return
    if plan.pace.bound == 0:
        raise UsageError(f"'{plan.pace}' with '{plan.exchange}': means that are 0 steps late are every(1); write that")
    if plan.pace != StaleTerm(plan.pace.bound):
        raise UsageError(
            f"'{plan.pace}' with '{plan.exchange}': all workers make the same steps, so only the bound has a meaning; "
            f"write stale({plan.pace.bound}), or server, {plan.pace}"
        )


def tuned_servers_are_switched(plan: Plan, workers: int) -> None:
    if plan.parts and plan.servers is not None and plan.servers.shards == "auto":
        raise UsageError(f"'{plan.servers}' of a part: another number of servers is a switch; write server(2)")
    if not isinstance(plan.exchange, ServerTerm) or plan.exchange.shards != "auto":
        return
    if isinstance(plan.pace, DeadlineTerm):
        raise UsageError(f"'{plan.exchange}' with '{plan.pace}': a deadline needs one server; write server")


def a_deadline_needs_one_server(plan: Plan, workers: int) -> None:
    if not isinstance(plan.pace, DeadlineTerm) or not isinstance(plan.exchange, ServerTerm):
        return
    if plan.exchange.servers > 1:
        raise UsageError(
            f"'{plan.exchange}' with '{plan.pace}': each server would choose for itself which pushes came in time, so "
            "one could count in a part of the model alone; write server"
        )
    if workers > 1 and plan.pace.backups >= workers:
        raise UsageError(f"'{plan.pace}' with {workers} workers: no step would wait for anybody; write fewer backups")


def two_levels_have_steps_of_their_own(plan: Plan, workers: int) -> None:
    """Workers of a host can only agree in steps that all of them make, and under other paces they do anyway."""
    served = next((each for each in plan.plans if isinstance(each.exchange, ServerTerm)), None)
    if served is None or not isinstance(served.exchange, ServerTerm) or served.exchange.levels == 1:
        return
    exchange, pace = served.exchange, served.pace
    if plan.parts:
        raise UsageError(f"'{exchange}' of a part: its rows differ from worker to worker; write server")
    if isinstance(pace, DeadlineTerm):
        raise UsageError(
            f"'{exchange}' with '{pace}': a host would wait for its slowest worker, which no step shall; write server"
        )
    if not isinstance(pace, StaleTerm | AsyncTerm):
        raise UsageError(
            f"'{exchange}' with '{pace}': there the workers of a host sum in its memory anyway, and one of them speaks "
            "to the servers; write server"
        )
    if pace.samples == "leased":
        raise UsageError(
            f"'{exchange}' with '{pace}': the workers of a host make their steps together, so none can take more "
            "samples than another; write samples=static"
        )
    if isinstance(pace, AsyncTerm) and pace.speculate:
        raise UsageError(
            f"'{exchange}' with '{pace}': a forward pass would begin again on other values than those of its host; "
            "remove speculate"
        )
