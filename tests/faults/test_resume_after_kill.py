"""P11 another number of workers, P12 everything killed: the run goes on, and every sample counts exactly once."""

import hashlib
import os
import signal
from pathlib import Path

import pytest
from forked import command, reap, soon
from scripts import assert_exactly_once, assert_seen_once, forget, resumed_at, script, shoal

from shoal.train.checkpoint.manifest import listed, newest
from shoal.train.checkpoint.shard import parse

WAIT = 60.0
HOLD = "time.sleep(0.05)"
"""After every step of a run that is to be killed: it must not be over before."""


def step_in(name: str) -> int:
    """Of a checkpoint's folder."""
    return int(name.rpartition("-")[2])


def kill_after_checkpoints(folder: Path, number: int, *words: str, **env: str) -> None:
    """Start a run, and kill -9 launcher and workers once it has made some checkpoints."""
    running = command(folder, "run", "--name", "one", *words, "script.py", **env)
    assert soon(WAIT, lambda: len(listed(folder / "runs" / "one")) >= number), "no checkpoint came"
    os.kill(running.pid, signal.SIGKILL)
    assert reap(running.pid, WAIT) == -signal.SIGKILL


PARTS = "0.*: topk(0.2), by_size(0); *: lowrank(1)"


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ("", "allreduce"),
        pytest.param("num_workers=2, persistent_workers=True", "allreduce", marks=pytest.mark.soak),
        pytest.param("", PARTS, marks=pytest.mark.soak),
    ],
)
def test_p12_all_killed_and_the_result_is_the_same_to_the_bit(tmp_path: Path, options: str, plan: str) -> None:
    script(tmp_path, options=options)
    whole = shoal(tmp_path, "run", "--name", "whole", "--workers", "2", "--plan", plan, "script.py")
    assert whole.code == 0, whole.err
    forget(tmp_path)
    for path in (tmp_path / "runs" / "whole").rglob("*"):
        path.unlink() if path.is_file() else None
    os.rename(tmp_path / "runs" / "whole", tmp_path / "whole")
    script(tmp_path, options=options, each=HOLD)
    kill_after_checkpoints(tmp_path, 2, "--workers", "2", "--plan", plan, "--checkpoint", "3steps")
    kept = listed(tmp_path / "runs/one")[0].name
    script(tmp_path, options=options)
    again = shoal(tmp_path, "run", "--resume", "one", "--json")
    assert again.code == 0, again.err
    assert "has changed since" in again.err
    assert resumed_at(again, tmp_path) == step_in(kept) >= 3
    assert again.checksum == whole.checksum, (whole.err, again.err)
    assert again.json["steps"] in (23, 24)  # the event of the checkpoint's own step may be lost with its process
    assert_exactly_once(tmp_path, "one", 96, 2)
    assert_seen_once(tmp_path, 96, 2)
    assert not list((tmp_path / "runs/one/checkpoints").glob("*.part"))


LOADED = """
import hashlib
with open(f"loaded-{run.rank}", "w") as file:
    file.write(" ".join(hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for p in model.parameters()))
scheduler ="""


@pytest.mark.parametrize(
    ("before", "after", "plan"),
    [
        (4, 1, "allreduce"),
        *(
            pytest.param(*sizes, plan, marks=pytest.mark.soak)
            for plan, *several in (
                ("allreduce", (4, 2), (4, 3), (4, 5), (4, 8), (1, 3)),
                (PARTS, (4, 2), (2, 3)),
            )
            for sizes in several
        ),
    ],
)
def test_p11_another_number_of_workers_in_the_middle_of_an_epoch(
    tmp_path: Path, before: int, after: int, plan: str
) -> None:
    script(tmp_path, samples=100, batch=2, each=HOLD)
    kill_after_checkpoints(tmp_path, 1, "--workers", str(before), "--plan", plan, "--checkpoint", "3steps")
    kept, _ = newest(tmp_path / "runs/one", "one")
    assert kept is not None
    tensors, _ = parse((kept / "worker-0.safetensors").read_bytes())
    script(tmp_path, samples=100, batch=2)
    text = (tmp_path / "script.py").read_text()
    (tmp_path / "script.py").write_text(text.replace("scheduler =", LOADED, 1))
    again = shoal(tmp_path, "run", "--resume", "one", "--workers", str(after), "--json")
    assert again.code == 0, again.err
    assert again.json["workers"] == after
    assert resumed_at(again, tmp_path) == step_in(kept.name) >= 3
    saved = {hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for tensor in tensors.values()}
    loaded = [set(path.read_text().split()) for path in tmp_path.glob("loaded-*")]
    assert len(loaded) == after
    assert all(each == loaded[0] <= saved for each in loaded), "what was loaded is not what was saved"
    assert_exactly_once(tmp_path, "one", 100, 2)
    assert_seen_once(tmp_path, 100, 2)


def test_p12_killed_before_any_checkpoint(tmp_path: Path) -> None:
    script(tmp_path, each=HOLD)
    running = command(tmp_path, "run", "--name", "one", "--workers", "2", "--checkpoint", "off", "script.py")
    assert soon(WAIT, (tmp_path / "seen-0.txt").exists)
    os.kill(running.pid, signal.SIGKILL)
    reap(running.pid, WAIT)
    script(tmp_path)
    again = shoal(tmp_path, "run", "--resume", "one")
    assert again.code == 0, again.err
    assert "has no checkpoint that can be used; it starts from the beginning" in again.err
    assert_exactly_once(tmp_path, "one", 96, 2)


def test_p12_an_interrupt_keeps_what_was_done(tmp_path: Path) -> None:
    script(tmp_path, epochs=40, each=HOLD)
    running = command(tmp_path, "run", "--name", "one", "--workers", "2", "--checkpoint", "1h", "script.py")
    assert soon(WAIT, lambda: (tmp_path / "seen-1.txt").exists() and (tmp_path / "seen-1.txt").stat().st_size > 99)
    os.kill(running.pid, signal.SIGTERM)
    outcome = running.wait(90)
    assert outcome.code == 130, outcome.err
    assert "Traceback" not in outcome.err
    assert len(listed(tmp_path / "runs" / "one")) == 1
    script(tmp_path)
    again = shoal(tmp_path, "run", "--resume", "one", "--json")
    assert again.code == 0, again.err
    assert resumed_at(again, tmp_path) >= 1
    assert_exactly_once(tmp_path, "one", 96, 2)
    assert "continued" in shoal(tmp_path, "show", "one").out


def test_p12_a_run_that_still_runs_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.core.lock.hold.__defaults__", (0.2,))
    script(tmp_path, epochs=40, each=HOLD)
    running = command(tmp_path, "run", "--name", "one", "script.py")
    assert soon(WAIT, (tmp_path / "seen-0.txt").exists)
    refused = shoal(tmp_path, "run", "--resume", "one")
    os.kill(running.pid, signal.SIGINT)
    running.wait(90)
    assert refused.code == 2
    assert refused.err.endswith("shoal: run 'one' is still running; stop it first, or wait for its end\n")


WRONG = {
    "no such run": (["--resume", "nothing"], "no run"),
    "another seed": (["--resume", "one", "--seed", "5"], "follows from its seed 0"),
    "a name": (["--resume", "one", "--name", "two"], "keeps its name"),
    "no interval": (["--resume", "one", "--checkpoint", "often"], "is not an interval"),
    "no script any more": (["--resume", "one", "gone.py"], "no script 'gone.py' here"),
}


def test_p12_what_cannot_be_continued_is_refused_on_one_line(tmp_path: Path) -> None:
    script(tmp_path, samples=8, epochs=1)
    assert shoal(tmp_path, "run", "--name", "one", "script.py").code == 0
    for what, (words, reason) in WRONG.items():
        outcome = shoal(tmp_path, "run", *words)
        assert outcome.code == 2, (what, outcome)
        assert reason in outcome.err.splitlines()[-1], what
    text = (tmp_path / "script.py").read_text()
    changed = text.replace("nn.Linear(4, 8)", "nn.Linear(4, 9)").replace("nn.Linear(8, 2)", "nn.Linear(9, 2)")
    script(tmp_path, samples=8, epochs=4, each=HOLD)
    assert shoal(tmp_path, "run", "--name", "two", "--checkpoint", "1steps", "script.py").code == 0
    (tmp_path / "script.py").write_text(changed)
    outcome = shoal(tmp_path, "run", "--resume", "two")
    assert outcome.code == 1
    assert "parameter.0.weight is [9, 4] torch.float32 here and [8, 4] torch.float32 in the checkpoint" in outcome.err
