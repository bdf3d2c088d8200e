"""`--workers auto` in virtual time: on any model of throughput it comes within 5 % of an exhaustive sweep."""

import random
from collections import Counter
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.launch.worker_tuning import WorkerTuner

BATCH = 32


def tuned(rate_of: Callable[[int], float], most: int, noise: float = 0.0, seed: int = 0) -> WorkerTuner:
    """Workers that make a step of BATCH samples each, while the launcher looks 20 times a second."""
    tuner, draw = WorkerTuner(most), random.Random(seed)
    workers, samples, at, step_ends, looks = 1, 0, 0.0, 0.0, 0
    while not tuner.done and looks < 10**6:
        looks, at = looks + 1, at + 0.05
        while step_ends <= at:
            samples += workers * BATCH
            step_ends += workers * BATCH / rate_of(workers) * (1 + draw.uniform(-noise, noise))
        wanted = tuner.observe(at, workers, Counter({0: samples}))
        workers = wanted if wanted is not None else workers
    assert tuner.done
    assert workers == tuner.wanted
    return tuner


def near_best(tuner: WorkerTuner, rate_of: Callable[[int], float], most: int) -> bool:
    return rate_of(tuner.wanted) >= 0.95 * max(rate_of(workers) for workers in range(1, most + 1))


@settings(max_examples=60, deadline=None)
@given(
    most=st.integers(2, 32),
    serial=st.floats(0, 0.5),
    crosstalk=st.floats(0, 0.05),
    single=st.floats(50, 5000),
    noise=st.sampled_from([0.0, 0.05]),
)
def test_row_79_within_5_percent_of_a_sweep_on_a_law_of_contention(most, serial, crosstalk, single, noise):
    """The universal scalability law: a part of each step is serial, and every pair costs something."""

    def rate_of(n: int) -> float:
        return single * n / (1 + serial * (n - 1) + crosstalk * n * (n - 1))

    assert near_best(tuned(rate_of, most, noise), rate_of, most)


@settings(max_examples=30, deadline=None)
@given(most=st.integers(2, 24), room=st.integers(1, 10))
def test_row_79_within_5_percent_of_a_sweep_on_a_device_with_room_for_some(most, room):
    """Throughput in stairs: one worker too many makes a step twice as long."""

    def rate_of(n: int) -> float:
        return 1000 * n / -(-n // room)

    tuner = tuned(rate_of, most)
    assert near_best(tuner, rate_of, most)
    assert tuner.wanted == min(room, most)


def test_a_worker_that_is_replaced_begins_the_measurement_anew():
    tuner = WorkerTuner(4)
    for look in range(400):
        samples = look * 10 if look < 30 else (look - 30) * 10
        if tuner.observe(look * 0.05, 1, Counter({0: samples})):
            break
    assert abs(tuner.rates[1] - 200.0) < 1
    assert look * 0.05 >= 1.5 + 4.0
