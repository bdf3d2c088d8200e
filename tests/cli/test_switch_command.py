"""`run.switch` and `shoal switch` on real workers: one plan on all, no sample lost, whoever is killed beside it.

Scripts decide by `run.plan` alone: it changes at the same step on all workers, so all of them end alike.
"""

import json
import os
import signal
from pathlib import Path

import pytest
from forked import Forked, Outcome, command, shoal, soon
from test_ps import end, ps, trains

from shoal.cli.main import main
from shoal.core.events import PlanSwitched, WorkerEntered
from shoal.membership import wal
from shoal.membership.log_entries import ViewInstalled
from shoal.train.checkpoint.manifest import listed, read_manifest
from shoal.watch.record import RunRecord

pytestmark = pytest.mark.usefixtures("tidy")

WAIT = 90.0
SCRIPT = """
import os, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
data = TensorDataset(torch.randn(120, 4), torch.randn(120, 2))
model, optimizer, loader = run.join(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
next_plan, ended = PLANS, False
for epoch in run.epochs(10**6):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)
        EACH
        if epoch and str(run.plan) in next_plan:
            run.switch(next_plan[str(run.plan)])
    if str(run.plan) == LAST:
        break
print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""
INT8, FP16, TOPK, TREE, LOCAL, PLAIN = (
    "allreduce, every(1), int8(1024)",
    "allreduce, every(1), fp16",
    "allreduce, every(1), topk(0.05)",
    "allreduce(tree), every(1)",
    "allreduce, local(4, average)",
    "allreduce, every(1)",
)
PARTS = "2.*: allreduce, every(1), int8(1024); *: allreduce, every(1), topk(0.1)"


def write(folder: Path, plans: list[str], last: str, each: str = "pass") -> None:
    """A script that goes from each of `plans` to the next, and ends after an epoch that ended by the plan `last`."""
    following = dict(zip([PLAIN, *plans], plans, strict=False))
    text = SCRIPT.replace("PLANS", repr(following)).replace("LAST", repr(last)).replace("EACH", each)
    (folder / "script.py").write_text(text)


def start(folder: Path, *words: str) -> Forked:
    return command(folder, "run", "--name", "one", *words, "script.py")


def finish(running: Forked) -> Outcome:
    outcome = running.wait(WAIT)
    assert outcome.code == 0, outcome.err
    checksums = {line.partition("checksum")[2] for line in outcome.out.splitlines() if "checksum" in line}
    assert len(checksums) == 1, outcome.out  # all replicas are one model
    return outcome


def assert_exactly_once(folder: Path) -> None:
    rows = json.loads(shoal(folder, "show", "one", "--ledger", "--json").out)["epochs"]
    assert rows
    assert all((row["samples"], row["missing"], row["duplicate"]) == (120, 0, 0) for row in rows), rows


def record(folder: Path) -> RunRecord:
    return RunRecord.open(folder / "runs" / "one")


def switches(folder: Path, worker: int) -> list[PlanSwitched]:
    return [event for event in record(folder).events(worker) if isinstance(event, PlanSwitched)]


def views(folder: Path) -> list[ViewInstalled]:
    entries = wal.read(folder / "runs" / "one" / "members.log")[0]
    return [entry for entry in entries if isinstance(entry, ViewInstalled)]


def assert_one_after_the_other(folder: Path, switches: int) -> None:
    """In the views that worker 0 was in."""
    numbers = [e.install.view.switches for e in views(folder) if "w0.1000000" in e.install.view]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(switches + 1))


def test_a_script_switches_its_plan_several_times(tmp_path: Path) -> None:
    write(tmp_path, [INT8, LOCAL, TOPK, TREE], last=TREE)
    running = start(tmp_path, "--workers", "2")
    outcome = finish(running)
    found = [(event.number, event.plan) for event in switches(tmp_path, 0)]
    assert found == [(1, INT8), (2, LOCAL), (3, TOPK), (4, TREE)]
    assert found == [(event.number, event.plan) for event in switches(tmp_path, 1)]
    assert [event.step for event in switches(tmp_path, 0)] == [event.step for event in switches(tmp_path, 1)]
    assert switches(tmp_path, 0)[-1].carried == ["residuals"]
    assert_one_after_the_other(tmp_path, 4)
    assert_exactly_once(tmp_path)
    assert outcome.err.count("on the plan is") == 4
    shown = shoal(tmp_path, "show", "one").out
    assert f"from step 0: {PLAIN}" in shown
    assert f": {TOPK}" in shown


def test_another_terminal_switches_the_plan_and_newcomers_follow(tmp_path: Path) -> None:
    """Also one that is started after a kill -9: it builds the plan of the view, not that of the command."""
    write(tmp_path, [], last=FP16)
    running = start(tmp_path, "--workers", "2")
    trains()
    outcome = shoal(tmp_path, "switch", "one", "topk(0.05)")
    assert (outcome.code, outcome.err) == (0, f"shoal: one trains by '{TOPK}' now\n")
    assert ps()[0]["plan"] == TOPK
    assert shoal(tmp_path, "switch", "one", TOPK).err == f"shoal: one trains by '{TOPK}' already\n"
    refused = shoal(tmp_path, "switch", "one", "nobody.*: int8; *: fp16")
    assert (refused.code, "pattern 'nobody.*' matches no parameter" in refused.err) == (2, True), refused.err
    assert shoal(tmp_path, "switch", "runs/one", PARTS).code == 0
    victim = ps()[0]["members"][1]["pid"]
    os.kill(victim, signal.SIGKILL)
    assert soon(WAIT, lambda: ps()[0]["members"][1]["pid"] != victim)
    assert soon(WAIT, lambda: any(isinstance(event, WorkerEntered) for event in record(tmp_path).events(1)))
    assert shoal(tmp_path, "switch", "one", "fp16").code == 0  # with the newcomer
    finish(running)
    assert [event.plan for event in switches(tmp_path, 0)] == [TOPK, PARTS, FP16]
    assert "parts of the model" not in shoal(tmp_path, "show", "one").out  # the last plan has none
    assert switches(tmp_path, 1)[-1].plan == FP16
    assert_one_after_the_other(tmp_path, 3)
    assert_exactly_once(tmp_path)


KILLED = """
        if run.rank == 1 and not os.path.exists("killed") and ("asked" in globals() or str(run.plan) == BEFORE):
            asked = asked + 1 if "asked" in globals() else 0
            if asked == STEPS:
                open("killed", "w").close()
                os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("plan", "steps"),
    [(INT8, 0), (INT8, 1), (LOCAL, 0)],
    ids=["as it asks", "a step later", "in local rounds, as it asks"],
)
def test_a_worker_that_is_killed_beside_a_switch_leaves_one_plan_on_all(tmp_path: Path, plan: str, steps: int) -> None:
    """Request, proposal and loss come in any order; the others go on, and the plan is switched all the same."""
    killed = KILLED.replace("BEFORE", repr(plan)).replace("STEPS", str(steps)).strip()
    write(tmp_path, [plan, TOPK], last=TOPK, each=killed)
    running = start(tmp_path, "--workers", "3")
    finish(running)
    assert (tmp_path / "killed").exists()
    assert [event.plan for event in switches(tmp_path, 0)] == [plan, TOPK]
    assert_one_after_the_other(tmp_path, 2)
    assert_exactly_once(tmp_path)


def test_a_run_goes_on_by_the_plan_of_its_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, [], last="none")
    running = start(tmp_path, "--workers", "2", "--checkpoint", "1h")
    trains()
    assert shoal(tmp_path, "switch", "one", "topk(0.05)").code == 0
    assert shoal(tmp_path, "stop", "one").code == 0
    assert running.wait(WAIT).code == 130
    (kept,) = listed(tmp_path / "runs" / "one")
    assert read_manifest(kept).plan == TOPK
    write(tmp_path, [], last=TOPK)
    again = shoal(tmp_path, "run", "--resume", "one")
    assert again.code == 0, again.err
    assert [attempt.plan for attempt in record(tmp_path).attempts] == [PLAIN, TOPK]
    assert_exactly_once(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `shoal switch` says, in one line, when it cannot be done."""
    with pytest.raises(SystemExit) as ended:
        main(["switch", *words])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def test_what_cannot_be_switched_is_said_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no run 'one' is live" in refused(capsys, "one", "int8")
    write(tmp_path, [], last="none")
    running = start(tmp_path, "--workers", "2")
    trains()
    assert "unknown term 'int9'" in refused(capsys, "one", "int9")
    assert "no plan" in refused(capsys, "one", " ")
    assert "no run 'two' is live" in refused(capsys, "two", "int8")
    assert "no run can be switched from or to" in refused(capsys, "one", "alone")
    assert "'2.bias' is" not in refused(capsys, "one", "local(4, fragments=5)")
    assert "how the model is kept" in refused(capsys, "one", "dorefa(2)")
    assert "3 shares for 2 workers" in refused(capsys, "one", "balance(2:1:1)")
    assert (ps()[0]["plan"], len(views(tmp_path))) == (PLAIN, 1)
    end(running)
    assert "no run 'one' is live" in refused(capsys, "one", "int8")


def test_a_run_of_one_worker_has_nobody_to_agree_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, [], last="none")
    running = start(tmp_path)
    trains()
    assert "has no coordinator" in refused(capsys, "one", "int8")
    end(running)
