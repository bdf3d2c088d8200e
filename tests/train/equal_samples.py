"""Trainings that differ in their plan alone: equal samples a step, whatever the number of workers."""

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import forked
import pytest

HERE = Path(__file__).parent
DATA = Path(os.environ.get("SHOAL_DATA", HERE.parents[2] / "shared" / "data"))


@cache
def trained(task: str, plan: str, workers: int, size: int, *more: float, seed: int = 0) -> dict[str, Any]:
    """The summary of a run; `size`: samples of MNIST, or steps of the transformer; `more`: learning rate, momentum."""
    place = DATA / {"mnist": "mnist", "shakespeare": "tinyshakespeare.txt"}[task]
    if not place.exists():
        pytest.skip(f"no {place}: set SHOAL_DATA to a folder that holds it")
    words = ["run", "-w", str(workers), "--json", "--plan", plan, "--checkpoint", "off", "--seed", str(seed)]
    if "samples=leased" not in plan and plan != "a-bsp":  # which take a coordinator
        words += ["--restarts", "0", "--min-workers", str(workers)]  # equal samples a step: nobody is taken for lost
    script = [str(HERE / f"{task}_sgd.py"), str(place), str(size), *map(str, more)]
    folder = Path(tempfile.mkdtemp())  # with a TemporaryDirectory the forked command would remove it when it ends
    try:
        done = forked.command(folder, *words, *script).wait(500)
    finally:
        shutil.rmtree(folder)
    assert done.code == 0, done.err
    return done.json


def accuracy(plan: str, workers: int, samples: int, *more: float, seeds: int = 1) -> float:
    """The mean over some seeds: that of a single one is 0.3 points off in one run of three."""
    found = [trained("mnist", plan, workers, samples, *more, seed=seed) for seed in range(seeds)]
    return sum(float(each["metrics"]["accuracy"]) for each in found) / seeds


def loss(plan: str, workers: int, steps: int) -> float:
    return float(trained("shakespeare", plan, workers, steps)["metrics"]["loss"])


def fewer(plan: str, workers: int, samples: int, *more: float) -> float:
    """How many times fewer bytes the plan sent than gradients have, over a training on MNIST."""
    found = trained("mnist", plan, workers, samples, *more)
    return float(found["bytes_raw"]) / float(found["bytes_sent"])
