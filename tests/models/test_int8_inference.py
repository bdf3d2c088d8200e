"""An int8 export of a trained model: a quarter of the bytes, as accurate, and faster (row 56)."""

import os
import statistics
import sys
import time
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from shoal.models.exporting import quantize
from shoal.models.program import run_onnx, trace_onnx

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from mnist import mnist  # noqa: E402

DATA = Path(os.environ.get("SHOAL_DATA", ROOT.parent / "shared" / "data")) / "mnist"

pytestmark = [pytest.mark.soak("clock"), pytest.mark.skipif(not DATA.exists(), reason=f"no {DATA}")]
WIDTH, TURNS = 1024, 15


def flat(part: str, limit: int) -> tuple[Tensor, Tensor]:
    images, labels = mnist(DATA, part, limit).tensors
    return images.flatten(1), labels


@pytest.fixture(scope="module")
def programs() -> tuple[bytes, bytes]:
    """A perceptron after one pass over 12,000 digits, as float32 and as int8."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = flat("train", 12_000)
    for x, y in zip(images.split(32), labels.split(32), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    exact = trace_onnx(model.eval(), [images[:4]])
    return exact, quantize(exact)


def test_it_is_smaller_and_within_a_point(programs: tuple[bytes, bytes]) -> None:
    exact, small = programs
    images, labels = flat("test", 10_000)
    right = [float((run_onnx(data, [images])[0].argmax(1) == labels).float().mean()) for data in programs]
    assert len(small) <= 0.3 * len(exact)
    assert right[0] >= 0.9
    assert right[1] >= right[0] - 0.01, right


@pytest.mark.parametrize("batch", [1, 32])
def test_it_is_faster(programs: tuple[bytes, bytes], batch: int) -> None:
    """On one core, in turns."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [onnxruntime.InferenceSession(data, options) for data in programs]
    given = {sessions[0].get_inputs()[0].name: torch.rand(batch, 784).numpy()}
    seconds: list[list[float]] = [[], []]
    for _ in range(TURNS):
        for session, taken in zip(sessions, seconds, strict=True):
            began = time.perf_counter()
            for _ in range(max(4, 100 // batch)):
                session.run(None, given)
            taken.append(time.perf_counter() - began)
    exact, small = map(statistics.median, seconds)
    assert exact >= 1.3 * small, (exact, small)
