"""P1 in scripts with a loop of their own: a killed worker comes back where the others are, or is named as one that did
not."""

from pathlib import Path

from scripts import given_up, shoal

LOOP = """
import os, signal, time, torch, shoal
from torch import nn

run = shoal.start()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
model, optimizer = run.join(model, optimizer)
STATE
marker = "killed"
first = state.iter_num
while state.iter_num < ITERATIONS:
    for group in optimizer.param_groups:
        group["lr"] = 0.02 / (1 + state.iter_num)
    x = torch.randn(4, 4)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state.iter_num += 1
    if state.iter_num == 5 and run.rank == 1 and not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
open(f"done-{run.rank}.txt", "w").write(f"{first} {state.iter_num} {optimizer.param_groups[0]['lr']:.9f} "
    + " ".join(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""


def script(folder: Path, state: str, iterations: int) -> None:
    text = LOOP.replace("STATE", state).replace("ITERATIONS", str(iterations))
    (folder / "script.py").write_text(text)


def test_p1_a_loop_of_its_own_is_entered_where_the_others_are(tmp_path: Path) -> None:
    script(tmp_path, "state = run.state(iter_num=0)", 400)
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", "2", "script.py")
    assert outcome.code == 0, outcome.err
    first, second = ((tmp_path / f"done-{rank}.txt").read_text().split() for rank in range(2))
    assert first[0] == "0"
    assert int(second[0]) >= 5, "it began where the others were"
    assert first[1:] == second[1:]
    assert len(given_up(tmp_path)) == 1
    assert "400 steps in" in outcome.err
    assert "steps/s" in outcome.err
    assert "samples" not in outcome.err


def test_p1_a_loop_with_counters_elsewhere_is_not_entered_and_the_run_says_so(tmp_path: Path) -> None:
    script(tmp_path, "from types import SimpleNamespace; state = SimpleNamespace(iter_num=0)", 60)
    outcome = shoal(tmp_path, "run", "--name", "one", "--workers", "2", "script.py")
    assert outcome.code == 0, outcome.err
    assert "keeps its counters elsewhere than in run.state" in outcome.err
    assert "worker 1 was started again and did not enter the run" in outcome.err
