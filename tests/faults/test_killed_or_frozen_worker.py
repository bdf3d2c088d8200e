"""P1 a worker is killed, P3 the coordinator, P4 both, P6 a worker is stopped, P7 and wakes up: the others go on."""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import Forked, _command, soon
from scripts import (
    TRAIN,
    assert_exactly_once,
    assert_generations_grow,
    assert_no_step_lost,
    assert_no_step_twice,
    given_up,
)

from shoal.core.process import HostProcess
from shoal.launch.live_runs import live
from shoal.watch.running import RunningMember
from shoal.watch.running import running as live_runs

pytestmark = pytest.mark.timeout(300)
WAIT = 90.0
SAMPLES, EPOCHS = 600, 2
SLOW = "time.sleep(0.0 if os.path.exists('go') else 0.15)"
"""After every step: half a minute for whatever is to happen, and then a quick end."""
PRINT = """
print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()), optimizer.param_groups[0]["lr"])
"""


NOTE = "notes.write(f'step {run.step}\\n')"


def write(folder: Path, samples: int = SAMPLES, each: str = SLOW, edit: Callable[[str], str] = str) -> None:
    """As the other scripts, but every worker prints what it ends with; steps are slow until there is a file `go`.

    Every process notes each batch that it is given, and each step that it has made.
    """
    text = TRAIN.replace("OPTIONS", "").replace("EACH", f"{NOTE}\n        {each}")
    text = text.replace("        loss = ((model", "        notes.write('batch\\n')\n        loss = ((model")
    text = text.replace("seen = open", "notes = open(f'notes-{os.getpid()}.txt', 'w', buffering=1)\nseen = open")
    for name, value in (("SAMPLES", samples), ("BATCH", 2), ("EPOCHS", EPOCHS)):
        text = text.replace(name, str(value))
    (folder / "script.py").write_text(edit(text[: text.index("if run.is_main")] + PRINT))


def pid(folder: Path, slot: int) -> int:
    """Of the worker that was started last in a slot."""
    lines = (folder / f"runs/one/worker-{slot}.jsonl").read_text().splitlines()
    return [json.loads(line)["pid"] for line in lines if '"event":"started"' in line][-1]


def trains(folder: Path, slot: int) -> bool:
    """Whether the worker in a slot has made a step since it was started last."""
    lines = (folder / f"runs/one/worker-{slot}.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["event"] for line in lines]
    return "step" in kinds and kinds[::-1].index("step") < kinds[::-1].index("started")


def coordinator() -> int:
    """The process number of the one coordinator that lives."""
    (notice,) = live()
    assert notice.coordinator is not None
    return notice.coordinator.pid


def after(number: int) -> None:
    """Wait until some worker is in this step."""
    assert soon(WAIT, lambda: step() >= number), "the training does not get there"


def step() -> int:
    return max((member.step for member in doing()), default=0)


def doing() -> list[RunningMember]:
    """What the workers of the one live run do at this moment; nothing before it begins and after its end."""
    return [member for run in live_runs() for member in run.members]


def kill(folder: Path, slot: int) -> None:
    """SIGKILL, and wait until another worker has taken the slot, and all three train."""
    gone = pid(folder, slot)
    os.kill(gone, signal.SIGKILL)
    complete(slot, gone)


def complete(slot: int, gone: int) -> None:
    """Wait until another process than `gone` has the slot, and all three train."""

    def whole() -> bool:
        members = doing()
        assert members, "the run has ended"
        return members[slot].pid != gone and all(member.rank is not None for member in members)

    assert soon(WAIT, whole), doing()


def start(folder: Path, *words: str, inject: Callable[[], object] = bool) -> Forked:
    """`shoal run` with three workers; `inject` is done first, in its process."""

    def run() -> None:
        inject()
        _command(["run", "--name", "one", "--workers", "3", *words, "script.py"])

    return Forked(folder, run)


def disturbed(
    folder: Path,
    act: Callable[[Forked], object],
    *words: str,
    samples: int = SAMPLES,
    each: str = SLOW,
    inject: Callable[[], object] = bool,
    edit: Callable[[str], str] = str,
    lockstep: bool = True,
) -> str:
    """Train with three workers, do something to them after some steps, and let them come to their end."""
    write(folder, samples, each, edit)
    running = start(folder, *words, inject=inject)
    after(8)
    try:
        act(running)
    except AssertionError as error:
        os.kill(running.pid, signal.SIGTERM)
        error.add_note(running.wait(WAIT).err)
        raise
    (folder / "go").touch()
    outcome = running.wait(WAIT)
    assert outcome.code == 0, outcome.err
    sums = [line[line.index("checksum") :] for line in outcome.out.splitlines() if "checksum" in line]
    assert len(set(sums)) == 1, "replicas differ"
    assert_exactly_once(folder, "one", samples, EPOCHS)
    assert_no_step_lost(folder, 3, lockstep)
    assert_no_step_twice(folder)
    assert_generations_grow(folder)
    return outcome.err


@pytest.mark.soak
def test_p1_a_killed_worker_is_replaced_though_nothing_left_before_the_pass_ended(tmp_path: Path) -> None:
    """Under a budget buckets are full long before anything of them leaves."""
    err = disturbed(tmp_path, lambda _: os.kill(pid(tmp_path, 1), signal.SIGKILL), "--plan", "bosen")
    assert "shoal: worker 1 was lost (SIGKILL)" in err


def test_p1_p3_p4_p6_one_after_the_other(tmp_path: Path) -> None:
    """The coordinator is killed, then it and a worker at once, then worker 0; at last a worker is stopped."""

    def act(_running: Forked) -> None:
        killed = coordinator()
        os.kill(killed, signal.SIGKILL)
        after(step() + 5)
        assert soon(WAIT, lambda: coordinator() != killed), "no other takes its place"
        os.kill(coordinator(), signal.SIGKILL)
        kill(tmp_path, 1)
        kill(tmp_path, 0)
        frozen = pid(tmp_path, 2)
        os.kill(frozen, signal.SIGSTOP)
        complete(2, frozen)

    err = disturbed(tmp_path, act)
    assert err.count("was lost (") == 3
    assert err.count("the others go on, and it is started again (1 of 3)") == 3
    assert given_up(tmp_path) == ["w1.1000000", "w0.1000000", "w2.1000000"]


@pytest.mark.soak
@pytest.mark.parametrize("slot", [0, 2])
def test_p1_a_killed_worker_is_replaced(tmp_path: Path, slot: int) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, slot))
    assert f"shoal: worker {slot} was lost (SIGKILL)" in err
    assert "the others go on, and it is started again (1 of 3)" in err
    starts = (tmp_path / f"runs/one/worker-{slot}.jsonl").read_text().count('"event":"started"')
    assert starts == 2
    assert given_up(tmp_path) == [f"w{slot}.1000000"]


def test_p1_without_restarts_the_others_go_on_alone(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: os.kill(pid(tmp_path, 1), signal.SIGKILL), "--restarts", "0")
    assert "the others go on, and it is quarantined: SIGKILL" in err
    assert "shoal: 1 loss on the way; worker 1 is quarantined (SIGKILL)" in err


def test_p1_too_few_workers_end_the_run(tmp_path: Path) -> None:
    write(tmp_path)
    running = start(tmp_path, "--restarts", "0", "--min-workers", "3")
    after(3)
    os.kill(pid(tmp_path, 1), signal.SIGKILL)
    outcome = running.wait(WAIT)
    assert outcome.code == 1
    assert "worker 1 died of SIGKILL" in outcome.err


@pytest.mark.soak
def test_p3_nobody_misses_the_coordinator(tmp_path: Path) -> None:
    def act(_running: Forked) -> None:
        killed = coordinator()
        os.kill(killed, signal.SIGKILL)
        after(step() + 5)
        assert soon(WAIT, lambda: coordinator() != killed), "no other takes its place"

    assert "was lost" not in disturbed(tmp_path, act)
    assert given_up(tmp_path) == []


@pytest.mark.soak
def test_p4_coordinator_and_worker_at_once(tmp_path: Path) -> None:
    def act(_running: Forked) -> None:
        os.kill(coordinator(), signal.SIGKILL)
        kill(tmp_path, 1)

    assert "worker 1 was lost (SIGKILL)" in disturbed(tmp_path, act)


@pytest.mark.soak
def test_p6_a_stopped_worker_is_replaced(tmp_path: Path) -> None:
    def act(_running: Forked) -> None:
        frozen = pid(tmp_path, 1)
        os.kill(frozen, signal.SIGSTOP)
        complete(1, frozen)

    assert "worker 1 was lost" in disturbed(tmp_path, act)
    assert given_up(tmp_path) == ["w1.1000000"]


HANG = """
        if run.worker_id == 1 and os.path.exists("hang") and not os.path.exists("hung"):
            open("hung", "w").close()
            import ctypes
            ctypes.PyDLL(None).sleep(1000)  # and holds the interpreter: no thread of it runs"""


@pytest.mark.soak
def test_p6_a_worker_that_holds_the_interpreter_is_replaced(tmp_path: Path) -> None:
    """Its process runs, as far as the system can see; only what it does not say tells."""

    def act(_running: Forked) -> None:
        held = pid(tmp_path, 1)
        (tmp_path / "hang").touch()
        complete(1, held)

    assert "worker 1 was lost" in disturbed(tmp_path, act, each=SLOW + HANG)
    assert given_up(tmp_path) == ["w1.1000000"]


@pytest.mark.soak
def test_p7_a_worker_that_wakes_up_after_it_was_given_up_changes_nothing(tmp_path: Path) -> None:
    """Its launcher, who would kill it, sleeps too: nothing but its own manners keeps it from doing harm."""

    def freeze(running: Forked) -> None:
        zombie = HostProcess.of(pid(tmp_path, 0))  # worker 0, who writes ledger and checkpoints
        os.kill(running.pid, signal.SIGSTOP)
        zombie.send(signal.SIGSTOP)
        assert soon(WAIT, lambda: zombie.state == "stopped")
        there = doing()[0].step
        assert soon(WAIT, lambda: doing()[1].step > there + 4), "the others do not go on without it"
        zombie.send(signal.SIGCONT)
        assert zombie.ended(WAIT), "it goes on though nobody counts on it"
        lines = (tmp_path / "seen-0.txt").read_text().splitlines()
        assert max(int(line.split()[1]) for line in lines) <= there + 1, "it made steps that nobody else made"
        os.kill(running.pid, signal.SIGCONT)
        complete(0, zombie.pid)

    err = disturbed(tmp_path, freeze, "--checkpoint", "5steps")
    assert "worker 0 was lost (evicted)" in err
    assert "the others go on, and it is started again (1 of 3)" in err


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
def test_p1_kills_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Workers die again and again, at moments that have nothing to do with their steps."""
    chance = random.Random(seed)

    def act(_running: Forked) -> None:
        for _ in range(3):
            time.sleep(1.0 + chance.uniform(0.0, 1.0))  # the record is half a second behind
            assert soon(WAIT, lambda: all(trains(tmp_path, slot) for slot in range(3)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid(tmp_path, chance.randrange(3)), signal.SIGKILL)

    disturbed(tmp_path, act, "--restarts", "9", samples=2400)


@pytest.mark.soak
def test_p1_a_model_in_few_bits_is_handed_over_with_its_anchor(tmp_path: Path) -> None:
    plan = "halp(bits=10, mu=1.0, anchor=7, inner=9)"
    err = disturbed(tmp_path, lambda _: os.kill(pid(tmp_path, 1), signal.SIGKILL), "--plan", plan)
    assert "shoal: worker 1 was lost (SIGKILL)" in err


@pytest.mark.soak
def test_p1_a_newcomer_under_fp16_begins_with_the_scale_of_the_others(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: os.kill(pid(tmp_path, 1), signal.SIGKILL), "--plan", "fp16")
    assert "shoal: worker 1 was lost (SIGKILL)" in err
