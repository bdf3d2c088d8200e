"""Members come and go over links, in network namespaces: P1, P3, P6 and N1, N2, N3, N5 of a lab's run."""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import Forked, command, soon
from scripts import TRAIN, assert_exactly_once

from shoal.cluster.lab.needs import missing

WAIT = 120.0
SAMPLES, EPOCHS, HOSTS = 240, 2, 3
PRINT = """
print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()), optimizer.param_groups[0]["lr"])
"""

pytestmark = pytest.mark.skipif(bool(missing()), reason="a lab cannot run here")


def write(folder: Path, lab: str, samples: int, each: str) -> None:
    """Every worker prints what it ends with; a step takes at least a twentieth of a second."""
    text = TRAIN.replace("OPTIONS", "").replace("EACH", each)
    for name, value in (("SAMPLES", samples), ("BATCH", 2), ("EPOCHS", EPOCHS)):
        text = text.replace(name, str(value))
    (folder / "script.py").write_text(text[: text.index("if run.is_main")] + PRINT)
    (folder / "lab.toml").write_text(f"hosts = {HOSTS}\nrate = '100mbit'\ndelay = '1ms'\n{lab}")


def events(folder: Path, seat: int) -> list[dict[str, object]]:
    path = folder / f"runs/one/worker-{seat}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pid(folder: Path, seat: int) -> int:
    """Of the worker that was started last in a seat."""
    return [int(str(event["pid"])) for event in events(folder, seat) if event["event"] == "started"][-1]


def steps(folder: Path) -> int:
    found = [int(str(e["step"])) for seat in range(HOSTS) for e in events(folder, seat) if e["event"] == "step"]
    return max(found, default=0)


def after(folder: Path, number: int) -> None:
    assert soon(WAIT, lambda: steps(folder) >= number), "the training does not get there"


def train(
    folder: Path,
    lab: str = "",
    act: Callable[[Forked], object] = lambda _: None,
    *words: str,
    at: int = 8,
    samples: int = SAMPLES,
    each: str = "time.sleep(0.05)",
) -> str:
    """Train on the hosts of a lab, do something to them, and let them come to their end; what the launcher said."""
    write(folder, lab, samples, each)
    running = command(folder, "run", "--name", "one", "--lab", "lab.toml", *words, "script.py")
    after(folder, at)
    act(running)
    outcome = running.wait(WAIT)
    assert outcome.code == 0, outcome.err
    sums = [line[line.index("checksum") :] for line in outcome.out.splitlines() if "checksum" in line]
    assert len(set(sums)) == 1, f"replicas differ: {sums}"
    assert_exactly_once(folder, "one", samples, EPOCHS)
    return outcome.err


@pytest.mark.parametrize("seat", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_p1_a_killed_worker_is_replaced(tmp_path: Path, seat: int) -> None:
    err = train(tmp_path, act=lambda _: os.kill(pid(tmp_path, seat), signal.SIGKILL))
    assert f"shoal: worker {seat} was lost (SIGKILL)" in err
    assert "is started again (1 of 3)" in err


def test_p6_a_frozen_host_is_replaced(tmp_path: Path) -> None:
    err = train(tmp_path, "[[event]]\nat = 'step 8'\nfreeze = [1]\n")
    assert "worker 1 was lost" in err


@pytest.mark.soak
def test_p3_nobody_misses_the_coordinator(tmp_path: Path) -> None:
    err = train(tmp_path, f"[[event]]\nat = 'step 8'\nkill = [{HOSTS}]\n")
    assert "was lost" not in err


def test_n3_the_coordinator_cut_off_for_a_while(tmp_path: Path) -> None:
    lab = f"[[event]]\nat = 'step 8'\ncut = [{HOSTS}]\n[[event]]\nat = 'step 40'\nrestore = [{HOSTS}]\n"
    assert "was lost" not in train(tmp_path, lab)


def test_n1_the_majority_goes_on_and_the_other_comes_back(tmp_path: Path) -> None:
    lab = "[[event]]\nat = 'step 8'\npartition = [[0, 1], [2]]\n[[event]]\nat = 'step 40'\nheal = true\n"
    err = train(tmp_path, lab)
    assert "worker 2 was lost" in err
    assert err.count("was lost") == 1


def test_n2_two_that_do_not_hear_each_other(tmp_path: Path) -> None:
    lab = "[[event]]\nat = 'step 8'\ncut_from = [1]\ncut_to = [2]\n[[event]]\nat = 'step 40'\nheal = true\n"
    err = train(tmp_path, lab)
    assert 1 <= err.count("was lost") <= 2


def test_n5_slow_is_not_dead(tmp_path: Path) -> None:
    lab = "[[event]]\nat = 'step 8'\nhost = [1]\nrate = '1mbit'\n"
    assert "was lost" not in train(tmp_path, lab)


def trains(folder: Path, seat: int) -> bool:
    """Whether the worker in a seat has made a step since it was started last."""
    kinds = [event["event"] for event in events(folder, seat)]
    return "step" in kinds and kinds[::-1].index("step") < kinds[::-1].index("started")


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_p1_kills_at_any_moment(tmp_path: Path, seed: int) -> None:
    import random
    import time

    chance = random.Random(seed)

    def kill(_running: Forked) -> None:
        for _ in range(3):
            time.sleep(1.0 + chance.uniform(0.0, 1.0))
            assert soon(WAIT, lambda: all(trains(tmp_path, seat) for seat in range(HOSTS)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid(tmp_path, chance.randrange(HOSTS)), signal.SIGKILL)

    train(tmp_path, act=kill, samples=900)
