"""P1 a worker is killed, P3 the coordinator, P4 both, P6 a worker is stopped: on one host, the others go on."""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import Forked, command, soon
from scripts import TRAIN, assert_exactly_once

WAIT = 90.0
SAMPLES, EPOCHS = 240, 2
PRINT = """
print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()), optimizer.param_groups[0]["lr"])
"""


def write(folder: Path, pause: float = 0.05, samples: int = SAMPLES) -> None:
    """As the other scripts, but every worker prints what it ends with."""
    text = TRAIN.replace("OPTIONS", "").replace("EACH", f"time.sleep({pause})")
    for name, value in (("SAMPLES", samples), ("BATCH", 2), ("EPOCHS", EPOCHS)):
        text = text.replace(name, str(value))
    (folder / "script.py").write_text(text[: text.index("if run.is_main")] + PRINT)


def steps(folder: Path) -> int:
    """Steps in the record so far."""
    lines = [line for path in (folder / "runs/one").glob("worker-*.jsonl") for line in path.read_text().splitlines()]
    return max((json.loads(line).get("step", 0) for line in lines if '"event":"step"' in line), default=0)


def pid(folder: Path, seat: int) -> int:
    """Of the worker that was started last in a seat."""
    lines = (folder / f"runs/one/worker-{seat}.jsonl").read_text().splitlines()
    return [json.loads(line)["pid"] for line in lines if '"event":"started"' in line][-1]


def trains(folder: Path, seat: int) -> bool:
    """Whether the worker in a seat has made a step since it was started last."""
    lines = (folder / f"runs/one/worker-{seat}.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["event"] for line in lines]
    return "step" in kinds and kinds[::-1].index("step") < kinds[::-1].index("started")


def coordinator(running: Forked, folder: Path) -> int:
    """The launcher's child that is no worker."""
    workers = {pid(folder, seat) for seat in range(3)}
    found = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    (other,) = {int(word) for word in found} - workers
    return other


def after(folder: Path, number: int) -> None:
    assert soon(WAIT, lambda: steps(folder) >= number), "the training does not get there"


def disturbed(folder: Path, act: Callable[[Forked], object], *words: str, samples: int = SAMPLES) -> str:
    """Train with three workers, do something to them after some steps, and let them come to their end."""
    write(folder, samples=samples)
    running = command(folder, "run", "--name", "one", "--workers", "3", *words, "script.py")
    after(folder, 8)
    act(running)
    outcome = running.wait(WAIT)
    assert outcome.code == 0, outcome.err
    sums = [line[line.index("checksum") :] for line in outcome.out.splitlines() if "checksum" in line]
    assert len(set(sums)) == 1, "replicas differ"
    assert_exactly_once(folder, "one", samples, EPOCHS)
    assert not list((folder / "runs/one").glob("handover-*"))
    return outcome.err


@pytest.mark.parametrize("seat", [0, 2])
def test_p1_a_killed_worker_is_replaced(tmp_path: Path, seat: int) -> None:
    err = disturbed(tmp_path, lambda _: os.kill(pid(tmp_path, seat), signal.SIGKILL))
    assert f"shoal: worker {seat} was lost (SIGKILL)" in err
    assert "the others go on, and it is started again (1 of 3)" in err
    starts = (tmp_path / f"runs/one/worker-{seat}.jsonl").read_text().count('"event":"started"')
    assert starts == 2


def test_p1_without_restarts_the_others_go_on_alone(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: os.kill(pid(tmp_path, 1), signal.SIGKILL), "--restarts", "0")
    assert "the others go on, and it stays away" in err


def test_p1_too_few_workers_end_the_run(tmp_path: Path) -> None:
    write(tmp_path)
    words = ("--restarts", "0", "--min-workers", "3")
    running = command(tmp_path, "run", "--name", "one", "--workers", "3", *words, "script.py")
    after(tmp_path, 3)
    os.kill(pid(tmp_path, 1), signal.SIGKILL)
    outcome = running.wait(WAIT)
    assert outcome.code == 1
    assert "worker 1 died of SIGKILL" in outcome.err


def test_p3_nobody_misses_the_coordinator(tmp_path: Path) -> None:
    def kill(running: Forked) -> None:
        os.kill(coordinator(running, tmp_path), signal.SIGKILL)
        after(tmp_path, steps(tmp_path) + 5)

    assert "was lost" not in disturbed(tmp_path, kill)


def test_p4_coordinator_and_worker_at_once(tmp_path: Path) -> None:
    def kill(running: Forked) -> None:
        for number in (coordinator(running, tmp_path), pid(tmp_path, 1)):
            os.kill(number, signal.SIGKILL)

    assert "worker 1 was lost (SIGKILL)" in disturbed(tmp_path, kill)


def test_p6_a_stopped_worker_is_replaced(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: os.kill(pid(tmp_path, 1), signal.SIGSTOP))
    assert "worker 1 was lost" in err


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
def test_p1_kills_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Workers die again and again, at moments that have nothing to do with their steps."""
    chance = random.Random(seed)

    def kill(_running: Forked) -> None:
        for _ in range(3):
            time.sleep(1.0 + chance.uniform(0.0, 1.0))  # the record is half a second behind
            assert soon(WAIT, lambda: all(trains(tmp_path, seat) for seat in range(3)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid(tmp_path, chance.randrange(3)), signal.SIGKILL)

    disturbed(tmp_path, kill, "--restarts", "9", samples=1200)


def test_p1_a_model_in_few_bits_is_handed_over_with_its_anchor(tmp_path: Path) -> None:
    plan = "halp(bits=10, mu=1.0, anchor=7, inner=9)"
    err = disturbed(tmp_path, lambda _: os.kill(pid(tmp_path, 1), signal.SIGKILL), "--plan", plan)
    assert "shoal: worker 1 was lost (SIGKILL)" in err
