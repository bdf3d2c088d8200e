"""Rules on which terms fit together: each is one small function, tested by itself.

A rule takes a plan and the number of workers. It raises UsageError when nothing could run, returns a
warning in one line when the run may not be what was meant, and otherwise returns None.
"""

from collections.abc import Callable

from shoal.core.errors import UsageError
from shoal.core.tree_edges import read_edges
from shoal.plan.factors import FactorsTerm
from shoal.plan.part_rules import check_parts
from shoal.plan.plan import Plan
from shoal.plan.precision import HalpTerm, PrecisionTerm
from shoal.plan.served_rules import (
    SERVED,
    a_deadline_needs_one_server,
    a_delay_is_a_number_of_steps,
    changes_are_compared_with_values,
    servers_get_what_there_is,
    tuned_servers_are_switched,
    two_levels_have_steps_of_their_own,
)
from shoal.plan.shared_rules import copies_of_hosts_are_averaged, shared_sends_nothing
from shoal.plan.terms import (
    AllReduceTerm,
    AloneTerm,
    DatagramsTerm,
    EveryTerm,
    LocalTerm,
    MixTerm,
    OrderTerm,
)
from shoal.plan.wrappers import GuardTerm, MomentumTerm, WireTerm
from shoal.sync.settings import SynchronizerSettings
from shoal.wire.settings import CodecSettings


def check(plan: Plan, workers: int) -> list[str]:
    """Return the warnings of all rules for `plan` on `workers` workers; raise UsageError for what is impossible."""
    found = [warning for rule in RULES if (warning := rule(plan, workers))]
    # After the plan's own terms, so that an error of the whole is not told as one of a part.
    check_parts(plan)
    for part in plan.parts:
        try:
            found += [f"part '{part.pattern}': {warning}" for warning in check(part.plan, workers)]
        except UsageError as error:
            raise UsageError(f"part '{part.pattern}': {error}") from None
    return found


def some_workers(plan: Plan, workers: int) -> None:
    if workers < 1:
        raise UsageError(f"{workers} workers cannot train; use 1 or more")


def alone_never_exchanges(plan: Plan, workers: int) -> str | None:
    if isinstance(plan.exchange, AloneTerm) and workers > 1:
        return f"plan 'alone' never exchanges: {workers} workers train {workers} different models"
    return None


def codecs_compose(plan: Plan, workers: int) -> None:
    if plan.codecs:
        from shoal.plan.compose import compose  # brings torch along, which a plan without codecs does not need

        # Only for its refusals; the run makes its codec again for its own number of workers.
        compose(plan.codecs)


def alone_sends_nothing(plan: Plan, workers: int) -> None:
    travelling = [term for term in plan.wire if not isinstance(term, PrecisionTerm)]
    if isinstance(plan.exchange, AloneTerm) and travelling:
        raise UsageError(f"'{travelling[0]}' says what travels, but 'alone' sends nothing; remove one of the two")


def one_precision_of_a_kind(plan: Plan, workers: int) -> None:
    kept = [term for term in plan.wire if isinstance(term, PrecisionTerm)]
    for number, term in enumerate(kept):
        if type(term) in [type(other) for other in kept[:number]]:
            raise UsageError(f"'{term}' is the second {term.name} of the plan; keep one")
        if isinstance(term, HalpTerm) and len(kept) > 1:
            other = kept[1 - number] if len(kept) == 2 else kept[number - 1]
            raise UsageError(f"'{term}' rounds the weights itself, so '{other}' has no place beside it; keep one")


def one_order(plan: Plan, workers: int) -> None:
    orders = [term for term in plan.wire if isinstance(term, OrderTerm)]
    if len(orders) > 1:
        raise UsageError(f"'{orders[0]}' and '{orders[1]}' both say what leaves first; keep one")


def largest_goes_as_it_is(plan: Plan, workers: int) -> None:
    if plan.order.by == "largest" and plan.codecs:
        raise UsageError(
            f"'{plan.order}' with '{plan.codecs[0]}': both choose what travels; keep one, or write topk(...), int8"
        )


def needed_goes_once(plan: Plan, workers: int) -> None:
    if plan.order.by not in ("needed", "auto"):
        return
    for term in plan.codecs:
        if term.sends_twice:
            raise UsageError(
                f"'{plan.order}' with '{term}': something travels twice, the second time when the step waits for it; "
                "write order(ready), or another codec"
            )


def needed_cannot_repeat(plan: Plan, workers: int) -> str | None:
    if plan.order.by in ("needed", "auto") and workers > 1:
        return f"{plan.order} leaves steps open between hosts: there a loss takes the run back to its last checkpoint"
    return None


def every_worker_has_a_share(plan: Plan, workers: int) -> None:
    ratio = plan.balance.ratio
    if ratio and len(ratio) != workers:
        raise UsageError(f"'{plan.balance}' has {len(ratio)} shares for {workers} workers; give one for each worker")


def alone_shares_no_batch(plan: Plan, workers: int) -> None:
    if isinstance(plan.exchange, AloneTerm) and plan.balance.shares == "auto":
        raise UsageError(f"'{plan.balance}' makes workers wait less for each other, but 'alone' never waits; remove it")


def pace_needs_an_exchange(plan: Plan, workers: int) -> None:
    if not isinstance(plan.pace, EveryTerm) and isinstance(plan.exchange, AloneTerm):
        raise UsageError(
            f"'{plan.pace}' says when replicas agree, but under 'alone' they never do; remove one of the two"
        )


def _has_rounds(plan: Plan) -> bool:
    """Whether replicas agree on parameters after some steps, and not on gradients in every backward pass."""
    own = plan.pace
    return isinstance(own, LocalTerm | SERVED) or (isinstance(own, SynchronizerSettings) and not own.lockstep)


def local_sends_after_the_step(plan: Plan, workers: int) -> None:
    if _has_rounds(plan) and plan.order.by != "ready":
        raise UsageError(
            f"'{plan.order}' with '{plan.pace}': nothing leaves while a backward pass runs, so nothing can be ordered; "
            "remove the order"
        )


def local_codes_changes(plan: Plan, workers: int) -> None:
    """Refuse methods for single gradients where changes of parameters over several steps are sent."""
    if not _has_rounds(plan):
        return
    for term in plan.wire:
        if isinstance(term, PrecisionTerm):
            why = "a mean of rounded weights is none, so replicas would leave the grid at every round"
        elif isinstance(term, MomentumTerm) or (
            isinstance(term, CodecSettings) and term.make_wrapping(workers).momentum is not None
        ):
            why = "its momentum is for gradients, and the optimizers of the workers have theirs; write topk(0.01)"
        elif isinstance(term, GuardTerm):
            why = "it compares gradients of single steps; use it with every(1)"
        elif isinstance(term, FactorsTerm):
            why = "what passes through layers gives gradients, and here changes of parameters travel; write int8"
        elif isinstance(term, WireTerm):
            why = "it measures exchanges of single steps; write a codec: int8"
        else:
            continue
        raise UsageError(f"'{term}' with '{plan.pace}': {why}")


def factors_stand_alone(plan: Plan, workers: int) -> None:
    if plan.factors is None:
        return
    for term in plan.wire:
        if isinstance(term, OrderTerm) and term.by != "ready":
            raise UsageError(f"'{term}' with '{plan.factors}': factors leave as they are ready; remove the order")
        if term is not plan.factors and not isinstance(term, OrderTerm):
            raise UsageError(
                f"'{term}' with '{plan.factors}': what is not sent as factors is summed as it is; remove one of "
                "the two, or give other layers a part of their own: 'head.*: factors; *: fp16'"
            )


def leases_follow_speed_already(plan: Plan, workers: int) -> None:
    leases = isinstance(plan.pace, LocalTerm | SERVED) and plan.pace.samples == "leased"
    if leases and plan.balance.shares != "even":
        raise UsageError(
            f"'{plan.balance}' with '{plan.pace}': a worker that leases its samples takes as many as it can train; "
            "keep one of the two"
        )


def centre_does_not_overshoot(plan: Plan, workers: int) -> str | None:
    """The centre moves by p * alpha of its distance to the mean of p replicas."""
    if isinstance(plan.pace, LocalTerm) and plan.pace.alpha is not None and plan.pace.alpha * workers > 1:
        times = f"{plan.pace.alpha * workers:.3g}"
        return (
            f"'{plan.pace}' on {workers} workers moves the centre {times} times as far as the mean of the replicas is, "
            f"so it overshoots; write alpha={1 / workers:.3g} or less, or leave it out"
        )
    return None


def edges_name_the_workers(plan: Plan, workers: int) -> None:
    if isinstance(plan.exchange, AllReduceTerm) and plan.exchange.edges:
        nodes = len(read_edges(plan.exchange.edges)) + 1
        if nodes > workers:
            raise UsageError(f"'{plan.exchange}' is a tree of {nodes}, and there are {workers} workers; leave some out")


def datagrams_carry_changes(plan: Plan, workers: int) -> None:
    if not isinstance(plan.exchange, DatagramsTerm):
        return
    if plan.wire:
        raise UsageError(
            f"'{plan.wire[0]}' with '{plan.exchange}': changes travel as they are, and lose nothing that a later "
            "datagram does not bring; remove it, or write allreduce"
        )
    if plan.pace != EveryTerm():
        raise UsageError(
            f"'{plan.pace}' with '{plan.exchange}': workers do not wait for each other there; remove one of the two"
        )
    if plan.balance.shares != "even":
        raise UsageError(
            f"'{plan.balance}' with '{plan.exchange}': the changes of all count alike, whatever their share; remove it"
        )


def mix_sends_parameters(plan: Plan, workers: int) -> None:
    if not isinstance(plan.exchange, MixTerm):
        return
    if plan.wire:
        raise UsageError(
            f"'{plan.wire[0]}' with '{plan.exchange}': parameters travel as they are, after the step; remove "
            "it, or write allreduce"
        )
    if plan.pace != EveryTerm():
        raise UsageError(f"'{plan.pace}' with '{plan.exchange}': partners mix after every step; remove one of the two")
    if plan.balance.shares != "even":
        raise UsageError(
            f"'{plan.balance}' with '{plan.exchange}': replicas are mixed alike, whatever their share; remove it"
        )


# In this order, because the first refusal is what the user reads: what cannot be at all before what does not pay.
RULES: tuple[Callable[[Plan, int], str | None], ...] = (
    some_workers,
    alone_never_exchanges,
    alone_sends_nothing,
    one_precision_of_a_kind,
    codecs_compose,
    one_order,
    factors_stand_alone,
    largest_goes_as_it_is,
    needed_goes_once,
    needed_cannot_repeat,
    every_worker_has_a_share,
    alone_shares_no_batch,
    pace_needs_an_exchange,
    servers_get_what_there_is,
    a_delay_is_a_number_of_steps,
    a_deadline_needs_one_server,
    tuned_servers_are_switched,
    two_levels_have_steps_of_their_own,
    changes_are_compared_with_values,
    local_sends_after_the_step,
    local_codes_changes,
    leases_follow_speed_already,
    centre_does_not_overshoot,
    shared_sends_nothing,
    copies_of_hosts_are_averaged,
    mix_sends_parameters,
    datagrams_carry_changes,
    edges_name_the_workers,
)
