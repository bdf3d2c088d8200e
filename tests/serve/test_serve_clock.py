"""What the server promises of the clock: batches that pay, and a server that sleeps while nobody asks.

The model is wide enough that a sample costs about as much as a batch: its weights are read once for either.
"""

import http.client
import itertools
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from serve import WIDE, Measured, measure, serving, write_model
from serve_sleep import measure_sleep

pytestmark = [pytest.mark.soak("clock"), pytest.mark.timeout(300)]
CLIENTS, SECONDS, TURNS = 32, 1.5, 6
GOAL = 4.0
"""Seconds, the server's --goal: batches stay large where other work takes most of the cores, too."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "mlp.onnx"
    write_model(path, WIDE)
    return path


def seconds_of_a_batch(port: int, name: str) -> float:
    """Mean, as the server counts it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/v2/models/{name}/stats")
    (found,) = json.loads(connection.getresponse().read())["model_stats"]
    connection.close()
    return float(found["inference_stats"]["compute_infer"]["ns"]) / 1e9 / found["execution_count"]


def in_turns(ports: tuple[int, ...], names: tuple[str, ...]) -> list[Measured]:
    """What 32 clients see of each server. In turns, so that other work on the cores slows all of them alike."""
    for port in ports:
        measure(port, "binary", CLIENTS, 2.0, names)  # until batches have their size
    turns = [[measure(port, "binary", CLIENTS, SECONDS, names) for port in ports] for _ in range(TURNS)]
    return [
        Measured(sorted(itertools.chain(*(each.latencies for each in own))), sum(each.failed for each in own), 1.0)
        for own in zip(*turns, strict=True)
    ]


@pytest.mark.parametrize(
    ("names", "pool"), [(("mlp",), []), (("one", "two"), ["--processes", "2"])], ids=["one model", "two in a pool"]
)
def test_32_clients_get_three_times_the_answers_by_batches(wide: Path, names: tuple[str, ...], pool: list[str]) -> None:
    served = [f"{name}={wide}" for name in names]
    words = [*served, *pool, "--goal", f"{GOAL}s"]
    with serving(*words, "--batch", "1") as (one_by_one, _), serving(*words) as (together, _):
        single, batched = in_turns((one_by_one, together), names)
        compute = max(seconds_of_a_batch(together, name) for name in names)
    assert single.failed == batched.failed == 0
    assert batched.rate >= 3 * single.rate, (batched.rate, single.rate)  # of the same seconds: answers
    assert batched.quantile(0.99) <= GOAL + compute, (batched.quantile(0.99), compute)


def test_a_server_that_sleeps_is_as_quick_as_a_resident_one_once_awake(wide: Path) -> None:
    found = measure_sleep(wide, turns=200, starts=3)
    assert found.warm <= 1.2 * found.resident, found
    assert found.cold <= 2 * found.load + 1.0, found  # a process that is forked, and the snapshot
