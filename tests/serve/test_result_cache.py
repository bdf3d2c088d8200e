"""The result cache: equal requests are computed once, within a limit of bytes, and never across versions."""

import asyncio

import numpy as np
import pytest
from served import MemorySource, Scaled, core_of, x

from shoal.serve.cache import ENTRY, ResultCache, input_digest
from shoal.serve.core_settings import CoreSettings


def answer(value: float, size: int = 8) -> dict[str, np.ndarray]:
    return {"y": np.full(size, value, dtype=np.float32)}


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.array([1.0, 3.0], dtype=np.float32)},
        {"x": np.array([1.0, 2.0])},
        {"x": np.array([[1.0, 2.0]], dtype=np.float32)},
        {"z": np.array([1.0, 2.0], dtype=np.float32)},
        {"x": np.array([b"a", b"bc"], dtype=object)},
    ],
)
def test_what_differs_in_value_type_shape_or_name_has_another_digest(other: dict[str, np.ndarray]) -> None:
    given = {"x": np.array([1.0, 2.0], dtype=np.float32)}
    assert input_digest(given) == input_digest({"x": given["x"].copy()}) != input_digest(other)


def test_strings_are_not_run_together() -> None:
    one, two = np.array([b"a", b"bc"], dtype=object), np.array([b"ab", b"c"], dtype=object)
    assert input_digest({"x": one}) != input_digest({"x": two})


def test_the_least_recently_used_leave_and_the_limit_holds() -> None:
    cache = ResultCache(3 * (ENTRY + 32))
    for number in range(3):
        cache.put((number, b""), answer(number))
    assert cache.find((0, b"")) is not None
    cache.put((3, b""), answer(3))
    assert [cache.find((number, b"")) is not None for number in range(4)] == [True, False, True, True]
    assert cache.size <= cache.limit
    cache.put((4, b""), answer(4, 10_000))  # larger than all of it
    assert len(cache) == 3


def test_a_kept_answer_is_no_view_of_its_batch() -> None:
    batch, cache = np.zeros((100, 2), dtype=np.float32), ResultCache(10_000)
    cache.put((1, b""), {"y": batch[:1]})
    batch[:] = 7.0
    kept = cache.find((1, b""))
    assert kept is not None
    assert kept["y"].tolist() == [[0.0, 0.0]]
    assert kept["y"].base is None


def test_equal_requests_are_computed_once_for_each_version() -> None:
    models = {1: Scaled(2.0), 2: Scaled(3.0)}
    source = MemorySource("m", {1: lambda: models[1]})
    core = core_of(source, settings=CoreSettings(cache=1 << 20))

    async def main() -> list[float]:
        found = [(await core.infer("m", x())).outputs["y"][0, 0] for _ in range(3)]
        source.add(2, lambda: models[2])
        await core.poll_once()
        found += [(await core.infer("m", x())).outputs["y"][0, 0] for _ in range(3)]
        await core.close()
        return found

    assert asyncio.run(main()) == [2.0] * 3 + [3.0] * 3
    assert (models[1].calls, models[2].calls) == ([1], [1])
    counts = core.metrics[("m", 1)]
    assert (counts.traffic.cache_hits, counts.traffic.cache_misses, counts.statuses[200]) == (2, 1, 3)
