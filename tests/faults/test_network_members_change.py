"""Members come and go over links, in network namespaces: P1, P3, P6 and N1, N2, N3, N5 of a lab's run."""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from forked import Forked, command, soon
from scripts import TRAIN, assert_exactly_once, assert_no_step_lost, given_up, noted

from shoal.lab.needs import missing

WAIT = 120.0
SAMPLES, EPOCHS, HOSTS = 540, 2, 3
SLOW = "time.sleep(0.0 if os.path.exists('go') else 0.1)"
"""After every step: 18 seconds for whatever is to happen, and then a quick end."""
PRINT = """
print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()), optimizer.param_groups[0]["lr"])
"""

pytestmark = [pytest.mark.skipif(bool(missing()), reason="a lab cannot run here"), pytest.mark.timeout(300)]


def write(folder: Path, lab: str, samples: int, load: int, each: str) -> None:
    """Every worker prints what it ends with; steps are slow until there is a file `go`."""
    text = TRAIN.replace("OPTIONS", "").replace("EACH", each)
    for name, value in (("SAMPLES", samples), ("BATCH", 2), ("EPOCHS", EPOCHS)):
        text = text.replace(name, str(value))
    text = text.replace("optimizer =", f"model.load = nn.Parameter(torch.zeros({load}))\noptimizer =", 1)
    text = text.replace("loss = ((model", "loss = model.load.sum() + ((model", 1)
    (folder / "script.py").write_text(text[: text.index("if run.is_main")] + PRINT)
    (folder / "lab.toml").write_text(f"hosts = {HOSTS}\nrate = '100mbit'\ndelay = '1ms'\n{lab}")


def events(folder: Path, slot: int) -> list[dict[str, object]]:
    path = folder / f"runs/one/worker-{slot}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may be half written


def pid(folder: Path, slot: int) -> int:
    """Of the worker that was started last in a slot."""
    return [int(str(event["pid"])) for event in events(folder, slot) if event["event"] == "started"][-1]


def steps(folder: Path) -> int:
    found = [int(str(e["step"])) for slot in range(HOSTS) for e in events(folder, slot) if e["event"] == "step"]
    return max(found, default=0)


def after(folder: Path, number: int) -> None:
    assert soon(WAIT, lambda: steps(folder) >= number), "the training does not get there"


def trains(folder: Path, slot: int) -> bool:
    """Whether the worker in a slot has made a step since it was started last."""
    kinds = [event["event"] for event in events(folder, slot)]
    return "step" in kinds and kinds[::-1].index("step") < kinds[::-1].index("started")


def whole(folder: Path, running: Forked) -> None:
    """Wait until somebody was lost, and all train again: those too that were started for others."""

    def again() -> bool:
        starts = sum(event["event"] == "started" for slot in range(HOSTS) for event in events(folder, slot))
        lost = running.err.read_text().count("was lost")
        return lost > 0 and starts == HOSTS + lost and all(trains(folder, slot) for slot in range(HOSTS))

    assert soon(WAIT, again), running.err.read_text()


def train(
    folder: Path,
    lab: str = "",
    act: Callable[[Forked], object] = lambda _: None,
    *words: str,
    samples: int = SAMPLES,
    load: int = 1,
    each: str = SLOW,
    rates: bool = True,
) -> str:
    """Train on the hosts of a lab, do something to them, and let them come to their end; what the launcher said.

    `rates`: whether all make the same steps, so that their learning rates are equal too.
    """
    write(folder, lab, samples, load, each)
    running = command(folder, "run", "--name", "one", "--lab", "lab.toml", *words, "script.py")
    after(folder, 8)
    act(running)
    (folder / "go").touch()
    outcome = running.wait(WAIT)
    assert outcome.code == 0, outcome.err
    sums = [line[line.index("checksum") :] for line in outcome.out.splitlines() if "checksum" in line]
    ends = {each if rates else each.rpartition(" ")[0] for each in sums}
    assert len(ends) == 1, f"replicas differ: {sums}"
    assert len(sums) == HOSTS
    assert_exactly_once(folder, "one", samples, EPOCHS)
    assert_no_step_lost(folder, HOSTS)
    return outcome.err


@pytest.mark.parametrize("slot", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_p1_a_killed_worker_is_replaced(tmp_path: Path, slot: int) -> None:
    def kill(running: Forked) -> None:
        os.kill(pid(tmp_path, slot), signal.SIGKILL)
        whole(tmp_path, running)

    err = train(tmp_path, act=kill)
    assert f"shoal: worker {slot} was lost (SIGKILL)" in err
    assert "is started again (1 of 3)" in err
    assert given_up(tmp_path) == [f"w{slot}.1000000"]


@pytest.mark.soak
def test_p6_a_frozen_host_is_replaced(tmp_path: Path) -> None:
    err = train(tmp_path, "[[event]]\nat = 'step 8'\nfreeze = [1]\n", partial(whole, tmp_path))
    assert "worker 1 was lost" in err
    assert given_up(tmp_path) == ["w1.1000000"]


@pytest.mark.soak
def test_p3_nobody_misses_the_coordinator(tmp_path: Path) -> None:
    lab = f"[[event]]\nat = 'step 8'\nkill = [{HOSTS}]\n"
    assert "was lost" not in train(tmp_path, lab, lambda _: after(tmp_path, 28))
    assert given_up(tmp_path) == []


@pytest.mark.soak
def test_n1_the_majority_goes_on_and_the_other_comes_back(tmp_path: Path) -> None:
    lab = "[[event]]\nat = 'step 8'\npartition = [[0, 1], [2]]\n[[event]]\nat = 'step 24'\nheal = true\n"
    err = train(tmp_path, lab, partial(whole, tmp_path))
    assert err.count("was lost") == err.count("worker 2 was lost") == 1
    assert given_up(tmp_path) == ["w2.1000000"]
    assert any(size == 2 for _, size in noted(tmp_path, 0)), "the majority waited"
    assert noted(tmp_path, 2) < noted(tmp_path, 0), "the minority made steps of its own"


@pytest.mark.soak
def test_n2_two_that_do_not_hear_each_other(tmp_path: Path) -> None:
    lab = "[[event]]\nat = 'step 8'\ncut_from = [1]\ncut_to = [2]\n[[event]]\nat = 'step 24'\nheal = true\n"
    err = train(tmp_path, lab, partial(whole, tmp_path))
    assert 1 <= err.count("was lost") <= 2
    gone = {member.partition(".")[0] for member in given_up(tmp_path)}
    assert gone in ({"w1"}, {"w2"}), "now one was given up and now the other"
    assert noted(tmp_path, 1) | noted(tmp_path, 2) <= noted(tmp_path, 0), "steps were made that others did not make"


def test_n3_the_coordinator_cut_off_for_a_while(tmp_path: Path) -> None:
    lab = f"[[event]]\nat = 'step 8'\ncut = [{HOSTS}]\n[[event]]\nat = 'step 40'\nrestore = [{HOSTS}]\n"
    assert "was lost" not in train(tmp_path, lab, lambda _: after(tmp_path, 42))
    assert given_up(tmp_path) == []


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_n3_the_coordinator_cut_off_for_a_minute(tmp_path: Path) -> None:
    lab = f"[[event]]\nat = 'step 8'\ncut = [{HOSTS}]\nfor = '60s'\n"
    assert "was lost" not in train(tmp_path, lab, lambda _: after(tmp_path, 650), samples=3000)
    assert given_up(tmp_path) == []


RATES = (("8", "10mbit"), ("14", "2mbit"), ("20", "1mbit"))


@pytest.mark.parametrize("load", [1000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_n5_slow_is_not_dead(tmp_path: Path, load: int) -> None:
    """A link becomes slower and slower under way; in the end a step of 20,000 parameters takes a second of it."""
    lab = "".join(f"[[event]]\nat = 'step {step}'\nhost = [1]\nrate = '{rate}'\n" for step, rate in RATES)
    assert "was lost" not in train(tmp_path, lab, lambda _: after(tmp_path, 26), samples=90, load=load)
    assert given_up(tmp_path) == []


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_p1_kills_at_any_moment(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    def kill(_running: Forked) -> None:
        for _ in range(3):
            time.sleep(1.0 + chance.uniform(0.0, 1.0))
            assert soon(WAIT, lambda: all(trains(tmp_path, slot) for slot in range(HOSTS)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid(tmp_path, chance.randrange(HOSTS)), signal.SIGKILL)

    train(tmp_path, act=kill, samples=1800)
