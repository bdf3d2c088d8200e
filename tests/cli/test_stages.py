"""`run.stage` on real workers: they come and go with the stages, also when worker 0 is killed as it begins one."""

import json
from pathlib import Path

import pytest
from forked import command, shoal

pytestmark = [pytest.mark.usefixtures("tidy"), pytest.mark.timeout(300)]

SCRIPT = """
import os, time, torch, shoal

run = shoal.start()
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.01))
state = run.state(part=0, steps=0)
parts = [("small", 2), ("large", 3), ("end", 1)]
while state.part < len(parts):
    name, workers = parts[state.part]
    run.stage(name, workers=workers)
    KILL
    run.weight(4)
    model(torch.ones(4, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    # the same on all: how many there are follows from the view
    state.steps = state.steps + 1 if run.size == workers else 0
    if state.steps == 5:
        state.part, state.steps = state.part + 1, 0
print("checksum", run.size, *(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""
KILL = """
    if name == "large" and run.is_main and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("kill", ["pass", KILL.strip()], ids=["nobody is lost", "kill -9 as a stage begins"])
def test_workers_come_and_go_with_the_stages(tmp_path: Path, kill: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.replace("KILL", kill))
    outcome = command(tmp_path, "run", "--name", "one", "--workers", "2", "--spare", "1", "script.py").wait(90)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("checksum") == 1
    stages = json.loads(shoal(tmp_path, "show", "one", "--json").out)["stages"]
    assert [(each["stage"], each["wanted"]) for each in stages] == [("small", 2), ("large", 3), ("end", 1)]
    assert all(each["core_seconds"] > 0 for each in stages)
    assert "core-seconds" in shoal(tmp_path, "show", "one").out


def test_alone_a_stage_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.replace("KILL", "pass").replace("if run.size == workers", "if True"))
    outcome = command(tmp_path, "run", "--name", "one", "script.py").wait(90)
    assert outcome.code == 0, outcome.err
    assert "wants 2 workers" not in outcome.err


def test_what_cannot_be_had_is_said(tmp_path: Path) -> None:
    script = SCRIPT.replace("KILL", "pass").replace("if run.size == workers", "if True")
    (tmp_path / "script.py").write_text(script.replace('"large", 3', '"large", 5').replace("== 5:", "== 100:"))
    outcome = command(tmp_path, "run", "--name", "one", "--workers", "2", "script.py").wait(90)
    assert outcome.code == 0, outcome.err
    assert "start the run with --spare 3 or more" in outcome.err
