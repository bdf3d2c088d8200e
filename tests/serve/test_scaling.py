"""As many processes as the load needs: on a bursty trace, in virtual time, without a clock."""

import heapq
from collections.abc import Iterator
from itertools import pairwise
from math import exp
from random import Random

import pytest

from shoal.serve.scaling import ScalingGoal, SwayamScaler, servers_needed, waits_longer

SERVICE, START, LOOK = 0.05, 0.3, 0.1
"""Seconds of one request, from a process's start to its first answer, and between two looks at the load."""
GOAL = ScalingGoal(least=1, most=16, goal=0.5, linger=2.0, window=2.0)


def bursty(seed: int, seconds: float = 600.0) -> list[float]:
    """Arrivals of a rate that switches between 20 and 120 a second (a Markov-modulated Poisson process)."""
    chance, now, found, rate = Random(seed), 0.0, [], 20.0
    while now < seconds:
        until = now + chance.expovariate(1 / 30.0 if rate < 50.0 else 1 / 15.0)
        while (now := now + chance.expovariate(rate)) < until:
            found.append(now)
        rate, now = 140.0 - rate, until
    return [each for each in found if each < seconds]


def serve_trace(arrivals: list[float], scaler: SwayamScaler | None, fixed: int = 1) -> tuple[float, float]:
    """The share of requests answered within the goal, and the seconds that processes existed, all together."""
    chance = Random(7)
    free = [0.0] * (scaler.goal.least if scaler else fixed)
    cost, in_time, look, seen = 0.0, 0, LOOK, 0
    waiting: list[float] = []
    for number, moment in enumerate(arrivals):
        while scaler is not None and look <= moment:
            scaler.observe(look, number - seen)
            seen = number
            waiting = [each for each in waiting if each > look]
            free = resized(free, scaler.wanted(look, SERVICE, len(waiting)), look)
            cost, look = cost + len(free) * LOOK, look + LOOK
        begin = max(moment, heapq.heappop(free))
        done = begin + SERVICE * chance.uniform(0.5, 1.5)
        heapq.heappush(free, done)
        waiting.append(done)
        in_time += done - moment <= GOAL.goal
    return in_time / len(arrivals), cost if scaler else fixed * arrivals[-1]


def resized(free: list[float], wanted: int, now: float) -> list[float]:
    """A new process answers after its start; those free last are dismissed, and cost nothing from then on."""
    free = sorted(free)[: max(wanted, 1)] + [now + START] * (wanted - len(free))
    heapq.heapify(free)
    return free


def smallest_static(arrivals: list[float]) -> tuple[int, float]:
    """Peak provisioning: the smallest number of processes that meets the goal, and its cost."""
    for fixed in range(1, GOAL.most + 1):
        kept, cost = serve_trace(arrivals, None, fixed)
        if kept >= GOAL.level:
            return fixed, cost
    raise AssertionError


@pytest.mark.parametrize("seed", range(5))
def test_a_bursty_trace_is_answered_in_time_with_a_fifth_fewer_replica_seconds_than_static_peak(seed: int) -> None:
    arrivals = bursty(seed)
    kept, cost = serve_trace(arrivals, SwayamScaler(GOAL))
    _, static = smallest_static(arrivals)
    assert kept >= 0.99
    assert cost <= 0.8 * static


def simulated_waits(rate: float, service: float, servers: int, count: int = 200_000) -> Iterator[float]:
    chance, now, free = Random(1), 0.0, [0.0] * servers
    for _ in range(count):
        now += chance.expovariate(rate)
        begin = max(now, heapq.heappop(free))
        heapq.heappush(free, begin + chance.expovariate(1 / service))
        yield begin - now


def test_the_queueing_model_agrees_with_a_simulated_queue() -> None:
    waits = list(simulated_waits(50.0, 0.05, 4))
    for seconds in (0.0, 0.05, 0.1):
        share = sum(each > seconds for each in waits) / len(waits)
        assert share == pytest.approx(waits_longer(50.0, 0.05, 4, seconds), abs=0.02)


def test_one_server_is_the_known_formula() -> None:
    assert waits_longer(5.0, 0.1, 1, 0.2) == pytest.approx(0.5 * exp(-(1 - 0.5) * 0.2 / 0.1))


def test_more_load_never_needs_fewer_and_bounds_hold() -> None:
    needed = [servers_needed(rate, SERVICE, GOAL) for rate in range(1000)]
    assert all(before <= after for before, after in pairwise(needed))
    assert (needed[0], needed[-1]) == (1, 16)


def test_zero_while_nobody_asks_and_one_at_the_first_request() -> None:
    scaler = SwayamScaler(ScalingGoal(least=0, most=4, linger=5.0))
    assert scaler.wanted(0.0, 0.0, 0) == 0
    scaler.observe(1.0, 1)
    assert scaler.wanted(1.0, 0.0, 1) == 1
    scaler.observe(4.0, 0)
    assert scaler.wanted(4.0, SERVICE, 0) == 1  # it lingers
    scaler.observe(7.0, 0)
    assert scaler.wanted(7.0, SERVICE, 0) == 0
