"""The core runs what it knows nothing about, and counts it."""

import asyncio

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import MemorySource, Scaled, core_of, x

from shoal.core.errors import UsageError
from shoal.serve.core_settings import CoreSettings
from shoal.serve.errors import BodyTooLarge, DeadlinePassed, ModelMissing, PredictFailed, RequestError
from shoal.serve.report import metrics_text


class Dummy:
    """No model of any framework."""

    def predict(self, value: np.ndarray) -> np.ndarray:
        if value[0] < 0:
            raise ValueError("no negative numbers\nand a second line")
        return value[::-1]


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_dummy_servable_is_managed_unchanged_with_state_and_latency_metrics() -> None:
    async def main() -> str:
        source = MemorySource("dummy", {1: Dummy})
        core = core_of(source)
        for _ in range(3):
            found = await core.infer("dummy", {"anything": np.arange(3)})
            assert found.outputs["output"].tolist() == [2, 1, 0]
        with pytest.raises(PredictFailed, match=r"the model raised ValueError: no negative numbers$"):
            await core.infer("dummy", {"anything": np.array([-1])})
        source.add(2, Dummy)
        await core.poll_once()
        await core.infer("dummy", {"anything": np.arange(3)})
        text = metrics_text(core)
        await core.close()
        return text

    found = samples(asyncio.run(main()))
    assert found["shoal_serve_requests_total", "1", "200", "dummy"] == 3
    assert found["shoal_serve_requests_total", "1", "500", "dummy"] == 1
    assert found["shoal_serve_latency_seconds_count", "1", "dummy"] == 3
    assert found["shoal_serve_latency_seconds_sum", "1", "dummy"] > 0
    assert found["shoal_serve_version_state", "1", "dummy", "ended"] == 1
    assert found["shoal_serve_version_state", "2", "available", "dummy"] == 1
    assert found["shoal_serve_failed_batches_total", "1", "dummy"] == 1


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        ({"z": np.zeros((1, 2), np.float32)}, RequestError, "no input 'z'; it takes x"),
        ({}, RequestError, "input 'x' is missing"),
        ({"x": np.zeros((1, 2))}, RequestError, "input 'x' is FP64; the model takes FP32"),
        ({"x": np.zeros((1, 3), np.float32)}, RequestError, r"shape \[1, 3\]; the model takes \[-1, 2\]"),
        ({"x": np.zeros((0, 2), np.float32)}, RequestError, "no sample"),
        ({"x": np.zeros((9, 2), np.float32)}, BodyTooLarge, "9 samples; 8 is the most"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: dict, error: type[Exception], words: str) -> None:
    core = core_of(MemorySource("m", {1: Scaled}), settings=CoreSettings(most_rows=8))
    with pytest.raises(error, match=words):
        asyncio.run(core.infer("m", inputs))


def test_unknown_models_and_versions_are_named() -> None:
    core = core_of(MemorySource("m", {1: Scaled}))
    with pytest.raises(ModelMissing, match="no model 'n' here; there is m"):
        asyncio.run(core.infer("n", x()))
    with pytest.raises(ModelMissing, match="version 5 of 'm' is not loaded; loaded: 1"):
        asyncio.run(core.infer("m", x(), number=5))
    assert (core.is_ready(), core.is_ready("m", 1), core.is_ready("m", 5), core.is_ready("n")) == (
        True,
        True,
        False,
        False,
    )


def test_a_request_without_time_left_is_not_computed() -> None:
    servable = Scaled()
    core = core_of(MemorySource("m", {1: lambda: servable}))
    with pytest.raises(DeadlinePassed):
        asyncio.run(core.infer("m", x(), timeout=0.0))
    assert servable.calls == []


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="the same name"):
        core_of(MemorySource("m"), MemorySource("m"))
