"""Requests a second and latencies of `shoal serve`: an MLP of 784-1024-1024-10, JSON and binary, batcher on and off.

    python benchmarks/serve.py [--seconds 5] [--clients 1,32] [--litserve PYTHON]

Server and clients share the machine, each client is a thread with one kept connection. With `--litserve`, an
interpreter that has LitServe and ONNX Runtime, the peer answers the same JSON in turns with `shoal serve`.
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
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTHS = (784, 1024, 1024, 10)


def write_model(path: Path) -> None:
    chance, nodes, constants, name = np.random.default_rng(0), [], [], "x"
    for at, (inner, outer) in enumerate(itertools.pairwise(WIDTHS)):
        weights = (chance.standard_normal((inner, outer)) / inner**0.5).astype(np.float32)
        constants.append(numpy_helper.from_array(weights, f"w{at}"))
        last = at == len(WIDTHS) - 2
        nodes.append(helper.make_node("MatMul", [name, f"w{at}"], ["y" if last else f"h{at}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"h{at}"], [f"r{at}"]))
            name = f"r{at}"
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, ["N", WIDTHS[0]])], [value("y", TensorProto.FLOAT, ["N", WIDTHS[-1]])]
    model = helper.make_model(
        helper.make_graph(nodes, "mlp", *ends, constants), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 9
    onnx.save(model, str(path))


@contextmanager
def serving(model: Path, *words: str) -> Iterator[int]:
    """The port of a server that serves the model."""
    shoal = [sys.executable, "-m", "shoal", "serve", f"mlp={model}", "--port", "0", *words]
    process = subprocess.Popen(shoal, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r":(\d+)$", process.stderr.readline().strip())
        if found is None:
            raise SystemExit("the server did not start")
        yield int(found.group(1))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@contextmanager
def serving_peer(python: str, model: Path) -> Iterator[int]:
    """The port of LitServe with the same model."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    script = Path(__file__).with_name("serve_litserve.py")
    command = [python, str(script), str(model), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not is_open(port):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{python} did not start LitServe; does it have litserve and onnxruntime?")
            time.sleep(0.2)
        yield port
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it does not always end its own processes
        process.wait(30)


def is_open(port: int) -> bool:
    """Whether the model answers, not only the socket."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/predict", body_of("json")[0], {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def body_of(kind: str) -> tuple[bytes, dict[str, str]]:
    sample = np.random.default_rng(1).random((1, WIDTHS[0]), dtype=np.float32)
    tensor: dict[str, object] = {"name": "x", "shape": [1, WIDTHS[0]], "datatype": "FP32"}
    if kind == "json":
        tensor["data"] = [round(float(each), 4) for each in sample[0]]
        return json.dumps({"inputs": [tensor]}).encode(), {}
    tensor["parameters"] = {"binary_data_size": sample.nbytes}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + sample.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def ask(port: int, kind: str, until: float, latencies: list[float], failed: list[float]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body, headers = body_of("json" if kind == "peer" else kind)
    path = "/predict" if kind == "peer" else "/v2/models/mlp/infer"
    headers = {"Content-Type": "application/json", **headers} if kind == "peer" else headers
    while (began := time.perf_counter()) < until:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        (latencies if answer.status == 200 else failed).append(time.perf_counter() - began)
    connection.close()


def measure(port: int, kind: str, clients: int, seconds: float) -> str:
    found: list[float] = []
    failed: list[float] = []
    until = time.perf_counter() + seconds
    threads = [threading.Thread(target=ask, args=(port, kind, until, found, failed)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 120)
    found.sort()
    if not found:
        return f"{0:8.0f} {'-':>8} {'-':>8} {len(failed):7d}"
    p50, p99 = (found[int(share * (len(found) - 1))] * 1e3 for share in (0.5, 0.99))
    return f"{len(found) / seconds:8.0f} {p50:8.2f} {p99:8.2f} {len(failed):7d}"


def report(who: str, port: int, kinds: tuple[str, ...], many: list[int], seconds: float) -> None:
    for kind in kinds:
        for clients in many:
            measure(port, kind, clients, 0.5)  # until batches have their size
            told = measure(port, kind, clients, seconds)
            print(f"{who:8} {'json' if kind == 'peer' else kind:8} {clients:6d}   {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", default="1,32")
    parser.add_argument("--litserve", metavar="PYTHON", help="an interpreter that has litserve and onnxruntime")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print("batcher  body    clients   requests/s  p50 ms   p99 ms  failed")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "mlp.onnx"
        write_model(model)
        clients = [int(each) for each in options.clients.split(",")]
        for batcher, words in (("on", ()), ("off", ("--batch", "1"))):
            with serving(model, *words) as port:
                report(batcher, port, ("json", "binary"), clients, options.seconds)
            if options.litserve and batcher == "on":
                with serving_peer(options.litserve, model) as port:
                    report("LitServe", port, ("peer",), clients, options.seconds)


if __name__ == "__main__":
    main()
