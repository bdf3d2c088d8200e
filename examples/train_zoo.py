"""Trains every model of the table in `models/` and registers each as NAME@zoo: `make zoo`.

    python examples/train_zoo.py --data DIR [MODEL ...]
    python examples/train_zoo.py --data DIR --check      # evaluate what is registered against its recorded figures
    shoal models zoo                                     # list them

DIR, or DIR/mnist, holds the four MNIST files, and DIR tinyshakespeare.txt. What is not there is made up, and the
table says so. Each training is a run of `zoo.py`, so a version has its lineage, and figures of the whole test set.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from models import TABLE, Entry, pretrained
from models.pretrained import ALIAS
from zoo import MADE_UP, evaluate

from shoal.models import ModelVersion, Registry

SECONDS = 3600
"""For one training, which takes a minute or two where nothing else runs."""
TOLERANCE = 1e-3
"""How far an evaluation may be from the recorded figure: sums of floats depend on the processor and its threads."""


@dataclass(frozen=True)
class Recipe:
    """How long a model learns: enough to be of use, in about a minute on one core."""

    limit: int
    epochs: int
    batch: int = 64


RECIPES = {
    "mlp": Recipe(20_000, 3),
    "alexnet": Recipe(12_000, 1, 32),
    "googlenet": Recipe(6_000, 1, 32),
    "resnet18": Recipe(3_000, 3, 32),
    "resnet50": Recipe(3_000, 2, 32),
    "densenet": Recipe(3_000, 3, 32),
    "lstm": Recipe(12_000, 2),
    "transformer": Recipe(12_000, 4),
    "autoencoder": Recipe(20_000, 2),
    "gan": Recipe(20_000, 2),
    "gcn": Recipe(4_000, 4),
}


def data_folder(entry: Entry, data: Path | None) -> Path | None:
    """Where the model's files are: `data` or its folder `mnist`; None if its data must be made up."""
    folders = [] if data is None or not entry.files else [data, data / "mnist"]
    return next((folder for folder in folders if all((folder / name).is_file() for name in entry.files)), None)


def command(name: str, data: Path | None) -> list[str]:
    """What follows `shoal` to train a model."""
    recipe, folder = RECIPES[name], data_folder(TABLE[name], data)
    words = ["--model", name, "--onnx", "--batch", str(recipe.batch), "--epochs", str(recipe.epochs)]
    words += ["--limit", str(recipe.limit), *(["--data", str(folder)] if folder else [])]
    return ["run", "--workers", "1", "--json", str(Path(__file__).with_name("zoo.py")), *words]


def train(name: str, data: Path | None) -> str:
    """Train a model; returns the id of the run."""
    # small models gain nothing from more threads, and lose much where others want the cores too
    threads = {"OMP_NUM_THREADS": "1"} | os.environ
    words = [sys.executable, "-m", "shoal", *command(name, data)]
    try:
        done = subprocess.run(words, env=threads, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"training {name} took more than {SECONDS} s; continue with those that are missing") from None
    if done.returncode:
        raise SystemExit(f"training {name} ended with exit code {done.returncode}; what it said stands above")
    return str(json.loads(done.stdout.splitlines()[-1])["run"])


def publish(name: str, run: str, registry: Registry) -> ModelVersion:
    """Let NAME@zoo stand for the version that the run became."""
    version = next((each for each in registry.list(name) if each.run == run), None)
    if version is None:
        raise SystemExit(f"run {run} of {name} was not registered in {registry.root}; 'shoal show {run}' says why")
    return registry.tag(version.ref, ALIAS)


def check(name: str, data: Path | None, registry: Registry) -> list[str]:
    """Load a model and evaluate it; what differs from the recorded figures, in words."""
    entry, folder = TABLE[name], data_folder(TABLE[name], data)
    model = pretrained(name, registry.root)
    found = evaluate(entry, model, entry.data("test", None if folder else MADE_UP, folder), torch.device("cpu"))
    wanted = registry.get(f"{name}@{ALIAS}").metrics
    return [
        f"{name}: {metric} is {value:.6f}, recorded is {wanted.get(metric)}"
        for metric, value in found.items()
        if abs(value - (wanted.get(metric) or float("inf"))) > TOLERANCE * max(1.0, abs(value))
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="only these; else all of the table")
    parser.add_argument("--data", type=Path, help="folder of the real data; what is missing there is made up")
    parser.add_argument("--check", action="store_true", help="train nothing; evaluate what is registered")
    args = parser.parse_args()
    for name in args.models:
        if name not in TABLE:
            parser.error(f"no model {name!r} in the table; there are {', '.join(TABLE)}")
    return args


def main() -> None:
    args = arguments()
    registry, wrong = Registry(), []
    for name in args.models or TABLE:
        if not args.check:
            version = publish(name, train(name, args.data), registry)
            figures = ", ".join(f"{metric} {value:.4f}" for metric, value in version.metrics.items())
            print(f"{name}@{ALIAS} is {version.ref}: {figures}", flush=True)
        wrong += check(name, args.data, registry)
    if wrong:
        raise SystemExit("\n".join(wrong))
    print(f"all figures are reproduced; 'shoal models zoo --models {registry.root}' lists them")


if __name__ == "__main__":
    main()
