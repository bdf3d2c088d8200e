"""Measures a server that scales to zero (`--processes 0:1`) beside one that stays resident.

    python benchmarks/serve_sleep.py [--turns 200] [--starts 5]

Prints medians: seconds from a request to the answer of a server that sleeps; of loading the model and asking it once
without a server, the least that such a start can take; and of requests, in turns, to a server that has woken up and to
a resident one. The model is the wide MLP of benchmarks/serve.py, 170 MB.
"""

import argparse
import http.client
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from serve import WIDE, body_of, serving, write_model


@dataclass(frozen=True)
class SleepReport:
    """Seconds, medians."""

    cold: float
    load: float
    warm: float
    resident: float


@contextmanager
def connected(port: int) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def ask(connection: http.client.HTTPConnection) -> float:
    body, headers = body_of("binary")
    began = time.perf_counter()
    connection.request("POST", "/v2/models/mlp/infer", body, headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    return time.perf_counter() - began


def wake(port: int, supervisor: int) -> float:
    """One request to a server whose last process has ended."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    until = time.monotonic() + 60
    while children.read_text().split():
        if time.monotonic() > until:
            raise SystemExit("the server did not fall asleep within a minute")
        time.sleep(0.05)
    with connected(port) as connection:
        return ask(connection)


def load_alone(path: Path) -> float:
    """The model in ONNX Runtime, without a server."""
    began = time.perf_counter()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.zeros((1, WIDE[0]), np.float32)})
    return time.perf_counter() - began


def measure_sleep(path: Path, turns: int, starts: int) -> SleepReport:
    with serving(f"mlp={path}") as resident, serving(f"mlp={path}", "--processes", "0:1") as sleeper:
        pairs = [(load_alone(path), wake(sleeper.port, sleeper.pid)) for _ in range(starts)]
        with connected(resident.port) as here, connected(sleeper.port) as there:
            ask(here), ask(there)
            asked = [(ask(here), ask(there)) for _ in range(turns)]  # never long enough apart to fall asleep
    load, cold = (statistics.median(each) for each in zip(*pairs, strict=True))
    always, warm = (statistics.median(each) for each in zip(*asked, strict=True))
    return SleepReport(cold, load, warm, always)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlp.onnx"
        write_model(path, WIDE)
        found = measure_sleep(path, options.turns, options.starts)
    print(json.dumps({name: round(seconds, 4) for name, seconds in asdict(found).items()}))


if __name__ == "__main__":
    main()
