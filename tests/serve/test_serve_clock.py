"""What the server promises of the clock: batches that pay, and a server that sleeps while nobody asks.

The model is wide enough that a sample costs about as much as a batch: its weights are read once for either.
"""

import http.client
import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from serve import WIDE, Measured, measure, serving, write_model
from serve_sleep import measure_sleep

pytestmark = [pytest.mark.soak("clock"), pytest.mark.timeout(300)]
CLIENTS, SECONDS = 32, 5.0
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


def loaded(words: list[str], names: tuple[str, ...]) -> tuple[Measured, float]:
    """What 32 clients see, and the mean time of a batch."""
    with serving(*words, "--goal", f"{GOAL}s") as (port, _):
        measure(port, "binary", CLIENTS, 2.0, names)  # until batches have their size
        found = measure(port, "binary", CLIENTS, SECONDS, names)
        return found, max(seconds_of_a_batch(port, name) for name in names)


@pytest.mark.parametrize(
    ("names", "pool"), [(("mlp",), []), (("one", "two"), ["--processes", "2"])], ids=["one model", "two in a pool"]
)
def test_32_clients_get_three_times_the_answers_by_batches(wide: Path, names: tuple[str, ...], pool: list[str]) -> None:
    served = [f"{name}={wide}" for name in names]
    single, _ = loaded([*served, *pool, "--batch", "1"], names)
    batched, compute = loaded([*served, *pool], names)
    assert single.failed == batched.failed == 0
    assert batched.rate >= 3 * single.rate, (batched.rate, single.rate)
    assert batched.quantile(0.99) <= GOAL + compute, (batched.quantile(0.99), compute)


def test_a_server_that_sleeps_is_as_quick_as_a_resident_one_once_awake(wide: Path) -> None:
    found = measure_sleep(wide, turns=200, starts=3)
    assert found.warm <= 1.2 * found.resident, found
    assert found.cold <= 2 * found.load + 1.0, found  # a process that is forked, and the snapshot
