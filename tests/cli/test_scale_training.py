"""Row 77 (Litz): 2 -> 4 -> 2 workers in the middle of a run, which ends where one that was never scaled does."""

import json
from pathlib import Path

import pytest
from forked import command, shoal, soon
from test_scale_command import WAIT, ends, members, scale

pytestmark = pytest.mark.usefixtures("tidy")

SCRIPT = """
import time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(240, 4)
data = TensorDataset(x, x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]]) + 0.1 * torch.randn(240, 1))
model, optimizer, loader = run.join(model, optimizer, DataLoader(data, batch_size=60, shuffle=True))
longest, before = 0.0, time.monotonic()
for epoch in run.epochs(10**6):
    for a, b in loader:
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.003)
        now = time.monotonic()
        longest, before = max(longest, now - before), now
    if str(run.plan) == "allreduce, every(1), fp16":
        break
with torch.no_grad():
    loss = nn.functional.mse_loss(model(x), data.tensors[1]).item()
momentum = sum(state["momentum_buffer"].double().abs().sum().item() for state in optimizer.state.values())
print("ended", loss, longest, f"{momentum:.17g}", *(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""


def train(folder: Path, changes: list[str]) -> list[list[str]]:
    """Scale by each of `changes`, then end; returns what each worker said."""
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    running = command(folder, "run", "--name", "one", "-w", "2", "--spare", "2", "script.py")
    assert soon(WAIT, lambda: members(folder) == [0, 1])
    for change in changes:
        done = scale(folder, change)
        assert done.code == 0, done.err
    assert shoal(folder, "switch", "runs/one", "allreduce, fp16").code == 0
    outcome = running.wait(WAIT)
    assert outcome.code == 0, outcome.err
    epochs = json.loads(shoal(folder, "show", "one", "--ledger", "--json").out)["epochs"]
    assert not any(epoch["missing"] or epoch["duplicate"] for epoch in epochs)
    return [line.partition("ended")[2].split() for line in outcome.out.splitlines() if "ended" in line]


@pytest.mark.soak("clock")
def test_scaled_to_four_workers_and_back_a_run_ends_with_the_same_loss_and_nobody_waits_long(tmp_path: Path) -> None:
    """All that is least squares, so the loss at the end is that of the data, whoever trained on them when. Momentum is
    a state of workers: newcomers take it over, and all end with the same."""
    scaled = train(tmp_path / "scaled", ["+2", "-2"])
    (plain, *_) = train(tmp_path / "plain", [])
    assert len(scaled) == 2
    assert ends(tmp_path / "scaled") == {0: "done", 1: "done", 2: "left", 3: "left"}  # nobody was started again
    assert scaled[0][2:] == scaled[1][2:]
    assert float(scaled[0][2]) > 0
    assert abs(float(scaled[0][0]) / float(plain[0]) - 1) < 0.01
    assert max(float(each[1]) for each in scaled) < 5.0  # seconds between two steps
