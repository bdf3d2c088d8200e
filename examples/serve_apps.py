"""Three applications ask one server: digits in images, the language of a sentence, the pitch of a sound.

    python examples/serve_apps.py [--seconds 3] [--clients 8] [--processes 2]

As in DjiNN and its Tonic suite (Hauswald et al., ISCA'15), an application prepares its input (pixels, letter pairs, a
spectrogram), asks the models that one pool of processes serves over TCP, and makes a label of the answer. The data is
generated or bundled, each model is a linear classifier fitted in closed form. Printed: accuracy on samples that the
model has not seen, queries a second, and the latency.
"""

import argparse
import http.client
import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = Any
RATE, LENGTH, WINDOW = 8000, 2000, 256
"""Samples a second and of a sound, and of one column of its spectrogram."""
WORDS = {
    "english": "the house and water with people from this that have would there other time which about",
    "german": "das haus und wasser mit leuten von dieser dass haben wuerde dort andere zeit welche ueber",
    "spanish": "la casa y agua con gente de este que tienen estaria alli otro tiempo cual sobre",
}
LETTERS = "abcdefghijklmnopqrstuvwxyz "


@dataclass
class Application:
    """What it asks with, how it prepares that, and what it should find."""

    name: str
    raw: list[Any]
    labels: Array
    prepare: Callable[[Any], Array]


def image_application(chance: np.random.Generator) -> Application:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = chance.permutation(len(images))
    return Application("image", list(images[order]), labels[order], lambda image: image / 16.0 - 0.5)


def text_application(chance: np.random.Generator) -> Application:
    languages = [*WORDS]
    labels = chance.integers(0, len(languages), 900)
    texts = [" ".join(chance.choice(WORDS[languages[label]].split(), 6)) for label in labels]
    return Application("text", texts, labels, letter_pairs)


def letter_pairs(text: str) -> Array:
    """How often each pair of letters occurs."""
    counts = np.zeros((len(LETTERS), len(LETTERS)))
    for first, second in itertools.pairwise(text):
        counts[LETTERS.index(first), LETTERS.index(second)] += 1
    return counts.ravel() / len(text)


def audio_application(chance: np.random.Generator) -> Application:
    pitches = 220.0 * 2 ** (np.arange(8) / 4)
    labels = chance.integers(0, len(pitches), 800)
    moments = np.arange(LENGTH) / RATE
    waves = [np.sin(2 * np.pi * pitches[each] * moments + chance.uniform(0, 6)) for each in labels]
    return Application("audio", [wave + chance.normal(0, 1.0, LENGTH) for wave in waves], labels, spectrogram)


def spectrogram(wave: Array) -> Array:
    """Loudness by frequency in windows that overlap by half, averaged over time."""
    starts = range(0, LENGTH - WINDOW + 1, WINDOW // 2)
    columns = [np.abs(np.fft.rfft(wave[at : at + WINDOW] * np.hanning(WINDOW))) for at in starts]
    return np.log1p(np.mean(columns, axis=0))


def fit(features: Array, labels: Array) -> tuple[Array, Array]:
    """Ridge regression to one column for each class."""
    wide = np.hstack([features, np.ones((len(features), 1))])
    target = np.eye(labels.max() + 1)[labels]
    solved = np.linalg.solve(wide.T @ wide + 1e-3 * len(wide) * np.eye(wide.shape[1]), wide.T @ target)
    return solved[:-1].astype(np.float32), solved[-1].astype(np.float32)


def write_program(path: Path, weight: Array, bias: Array) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "weight", "bias"], ["scores"])],
        "linear",
        [value("x", TensorProto.FLOAT, ["N", weight.shape[0]])],
        [value("scores", TensorProto.FLOAT, ["N", weight.shape[1]])],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, str(path))


@contextmanager
def serving(words: list[str]) -> Iterator[int]:
    """The port of `shoal serve`."""
    command = [sys.executable, "-m", "shoal", "serve", *words, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r":(\d+)$", process.stderr.readline().strip())
        if found is None:
            raise SystemExit("the server did not start")
        yield int(found.group(1))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def client(port: int, app: Application, half: int, until: float, results: list[tuple[bool, float]]) -> None:
    """Ask with samples that the model has not seen, from raw input to label."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    at = half + len(results)
    while time.perf_counter() < until:
        at = half + (at + 7) % (len(app.raw) - half)
        began = time.perf_counter()
        body = json.dumps({"inputs": app.prepare(app.raw[at]).tolist()})
        connection.request("POST", f"/predict/{app.name}", body)
        answer = json.loads(connection.getresponse().read())
        results.append((int(np.argmax(answer["outputs"])) == app.labels[at], time.perf_counter() - began))
    connection.close()


def measure(port: int, app: Application, half: int, clients: int, seconds: float) -> list[tuple[bool, float]]:
    results: list[tuple[bool, float]] = []
    until = time.perf_counter() + seconds
    work = (port, app, half, until, results)
    threads = [threading.Thread(target=client, args=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--processes", default="2")
    options = parser.parse_args()
    chance = np.random.default_rng(0)
    apps = [image_application(chance), text_application(chance), audio_application(chance)]
    with tempfile.TemporaryDirectory() as folder:
        words = []
        for app in apps:
            half, path = len(app.raw) // 2, Path(folder) / f"{app.name}.onnx"
            features = np.stack([app.prepare(each) for each in app.raw[:half]])
            write_program(path, *fit(features, app.labels[:half]))
            words.append(f"{app.name}={path}")
        with serving([*words, "--processes", options.processes]) as port:
            print("application  accuracy  queries/s  p50 ms  p99 ms")
            for app in apps:
                found = measure(port, app, len(app.raw) // 2, options.clients, options.seconds)
                times = sorted(seconds * 1e3 for _, seconds in found)
                share = sum(right for right, _ in found) / len(found)
                p50, p99 = times[len(times) // 2], times[int(0.99 * (len(times) - 1))]
                print(f"{app.name:11} {share:9.3f} {len(found) / options.seconds:10.0f} {p50:7.2f} {p99:7.2f}")


if __name__ == "__main__":
    main()
