"""`server(auto)` in virtual time: from any number of servers it comes within 10 % of an exhaustive sweep."""

import random
from collections import Counter
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.launch.server_tuning import MOST_TRIED, ServerTuner

SAMPLES = 64
"""Of a step of all workers."""
SWITCH = 1.5
"""Seconds until a switch that was asked for is made."""


def tuned(rate_of: Callable[[int], float], first: int, noise: float = 0.0, seed: int = 0) -> ServerTuner:
    """The launcher looks 20 times a second, and a switch takes its time."""
    tuner, draw = ServerTuner(first), random.Random(seed)
    servers, samples, at, step_ends, made = first, 0, 0.0, 0.0, (0.0, first)
    for _ in range(10**6):
        at += 0.05
        while step_ends <= at:
            samples += SAMPLES
            step_ends += SAMPLES / rate_of(servers) * (1 + draw.uniform(-noise, noise))
        servers = made[1] if at >= made[0] else servers
        wanted = tuner.observe(at, servers, Counter({0: samples}))
        made = (at + SWITCH, wanted) if wanted is not None else made
        if tuner.done and servers == tuner.wanted:
            return tuner
    raise AssertionError(f"not settled: {tuner}")


def step_rate(computing: float, sending: float, each: float, cores: int) -> Callable[[int], float]:
    """Samples/s where servers share what is sent, cost something each, and share `cores` from some number on."""

    def rate(servers: int) -> float:
        return SAMPLES / (computing + sending / min(servers, cores) + each * servers)

    return rate


@settings(max_examples=40)
@given(
    computing=st.floats(0.005, 0.2),
    sending=st.floats(0.0, 0.5),
    each=st.floats(0.0, 0.02),
    cores=st.integers(1, 16),
    first=st.integers(1, MOST_TRIED),
    seed=st.integers(0, 1000),
)
def test_within_a_tenth_of_the_best_number_from_any_first_one(
    computing: float, sending: float, each: float, cores: int, first: int, seed: int
) -> None:
    rate_of = step_rate(computing, sending, each, cores)
    tuner = tuned(rate_of, first, noise=0.02, seed=seed)
    best = max(rate_of(servers) for servers in range(1, MOST_TRIED + 1))
    assert rate_of(tuner.wanted) >= 0.9 * best
    assert len(tuner.rates) <= MOST_TRIED


def test_where_servers_bring_nothing_one_is_kept() -> None:
    assert tuned(lambda servers: 1000.0, first=8).wanted == 1


def test_a_number_the_user_switched_to_meanwhile_is_not_measured() -> None:
    tuner = ServerTuner(2)
    for look in range(2000):
        assert tuner.observe(look / 20, 5, Counter({0: look * SAMPLES})) is None
    assert not tuner.rates
