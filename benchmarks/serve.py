"""Requests a second and latencies of `shoal serve`: an MLP of 784-1024-1024-10, JSON and binary, batcher on and off.

    python benchmarks/serve.py [--seconds 5] [--clients 1,32] [--wide] [--peer litserve=PYTHON] [--peer triton=PYTHON]

Server and clients share the machine, each client is a thread with one kept connection. PYTHON is an interpreter that
has the peer (litserve, bentoml, ray[serve], nvidia-pytriton) and ONNX Runtime; it answers the same samples.
"""

import argparse
import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTHS = (784, 1024, 1024, 10)
WIDE = (784, 6144, 6144, 10)
"""170 MB of weights, read once for a batch: one sample computes hardly faster than many, so that batches pay."""


PEERS = {"litserve": "json", "bentoml": "rows", "ray": "json", "triton": "binary"}
"""Other servers, and what is sent to them: the protocol's JSON, rows of numbers, or binary tensors."""


@dataclass(frozen=True)
class Measured:
    """What clients saw: seconds of every answer, and how many requests failed."""

    latencies: list[float]
    failed: int
    seconds: float

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        return self.latencies[int(share * (len(self.latencies) - 1))]

    def __str__(self) -> str:
        if not self.latencies:
            return f"{0:8.0f} {'-':>8} {'-':>8} {self.failed:7d}"
        p50, p99 = (self.quantile(share) * 1e3 for share in (0.5, 0.99))
        return f"{self.rate:8.0f} {p50:8.2f} {p99:8.2f} {self.failed:7d}"


def write_model(path: Path, widths: tuple[int, ...] = WIDTHS) -> None:
    chance, nodes, constants, name = np.random.default_rng(0), [], [], "x"
    for at, (inner, outer) in enumerate(itertools.pairwise(widths)):
        weights = (chance.standard_normal((inner, outer)) / inner**0.5).astype(np.float32)
        constants.append(numpy_helper.from_array(weights, f"w{at}"))
        last = at == len(widths) - 2
        nodes.append(helper.make_node("MatMul", [name, f"w{at}"], ["y" if last else f"h{at}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"h{at}"], [f"r{at}"]))
            name = f"r{at}"
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, ["N", widths[0]])], [value("y", TensorProto.FLOAT, ["N", widths[-1]])]
    model = helper.make_model(
        helper.make_graph(nodes, "mlp", *ends, constants), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 9
    onnx.save(model, str(path))


class ServingProcess(NamedTuple):
    port: int
    pid: int


@contextmanager
def serving(*words: str | Path) -> Iterator[ServingProcess]:
    """`shoal serve WORDS`, once it answers."""
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen([sys.executable, "-m", "shoal", "serve", "--port", "0", *words], stderr=told)
        try:
            yield ServingProcess(port_of(process, told), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def port_of(process: "subprocess.Popen[bytes]", told: TextIO) -> int:
    """What the server says once it answers."""
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        told.seek(0)
        if found := re.search(r"serving .*:(\d+)$", told.read(), re.MULTILINE):
            return int(found.group(1))
        time.sleep(0.05)
    raise SystemExit("the server did not start")


@contextmanager
def serving_peer(name: str, python: str, model: Path) -> Iterator[int]:
    """The port of another server with the same model."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    script = Path(__file__).with_name(f"serve_{name}.py")
    command = [python, str(script), str(model), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while not is_open(port, name):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{python} did not start {name}; does it have it, and onnxruntime?")
            time.sleep(0.2)
        yield port
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # some do not end their own processes
        process.wait(30)


def is_open(port: int, kind: str) -> bool:
    """Whether the model answers, not only the socket."""
    until, found, failed = time.perf_counter() + 0.5, list[float](), list[float]()
    with suppress(OSError, http.client.HTTPException):
        ask(port, kind, until, found, failed)
    return bool(found)


def body_of(kind: str) -> tuple[bytes, dict[str, str]]:
    sample = np.random.default_rng(1).random((1, WIDTHS[0]), dtype=np.float32)
    if kind == "rows":
        return json.dumps({"inputs": [[round(float(each), 4) for each in sample[0]]]}).encode(), {}
    tensor: dict[str, object] = {"name": "x", "shape": [1, WIDTHS[0]], "datatype": "FP32"}
    if kind == "json":
        tensor["data"] = [round(float(each), 4) for each in sample[0]]
        return json.dumps({"inputs": [tensor]}).encode(), {}
    tensor["parameters"] = {"binary_data_size": sample.nbytes}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + sample.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def ask(port: int, kind: str, until: float, latencies: list[float], failed: list[float], model: str = "mlp") -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body, headers = body_of(PEERS.get(kind, kind))
    path = f"/v2/models/{model}/infer" if kind in ("json", "binary", "triton") else "/predict"
    headers = {"Content-Type": "application/json", **headers} if kind in PEERS else headers
    while (began := time.perf_counter()) < until:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        (latencies if answer.status == 200 else failed).append(time.perf_counter() - began)
    connection.close()


def measure(port: int, kind: str, clients: int, seconds: float, models: tuple[str, ...] = ("mlp",)) -> Measured:
    """Clients that ask again as soon as they are answered, the models in turns."""
    found: list[float] = []
    failed: list[float] = []
    until = time.perf_counter() + seconds
    asked = itertools.islice(itertools.cycle(models), clients)
    threads = [threading.Thread(target=ask, args=(port, kind, until, found, failed, name)) for name in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 120)
    return Measured(sorted(found), len(failed), seconds)


def report(who: str, port: int, kinds: tuple[str, ...], many: list[int], seconds: float) -> None:
    for kind in kinds:
        for clients in many:
            measure(port, kind, clients, 0.5)  # until batches have their size
            told = measure(port, kind, clients, seconds)
            print(f"{who:8} {PEERS.get(kind, kind):8} {clients:6d}   {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", default="1,32")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help=", ".join(PEERS))
    parser.add_argument("--wide", action="store_true", help="784-6144-6144-10 in place of 784-1024-1024-10")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print("batcher  body    clients   requests/s  p50 ms   p99 ms  failed")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "mlp.onnx"
        write_model(model, WIDE if options.wide else WIDTHS)
        clients = [int(each) for each in options.clients.split(",")]
        for batcher, words in (("on", ()), ("off", ("--batch", "1"))):
            with serving(f"mlp={model}", *words) as server:
                report(batcher, server.port, ("json", "binary"), clients, options.seconds)
            for name, _, python in (each.partition("=") for each in options.peer if batcher == "on"):
                with serving_peer(name, python, model) as port:
                    report(name, port, (name,), clients, options.seconds)


if __name__ == "__main__":
    main()
