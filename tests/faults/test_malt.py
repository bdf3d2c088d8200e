"""MALT (Li et al. 2015), row 38 of docs/systems.toml: a loop becomes parallel with few lines, and outlives a peer."""

import difflib
from pathlib import Path

import pytest
from forked import command

pytestmark = pytest.mark.timeout(120)

SEQUENTIAL = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for inputs, wanted in loader:
        (model(inputs) - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print("error", float((model(x) - x.sum(1, keepdim=True)).square().mean().detach()))
"""
PARALLEL = SEQUENTIAL.replace("import torch\n", "import torch\nimport shoal\n", 1).replace(
    "for epoch in range(2):",
    "run = shoal.start()\nmodel, optimizer, loader = run.join(model, optimizer, loader)\nfor epoch in run.epochs(2):",
)
KILLED = """        if run.worker_id == 1 and run.step == 7:
            import os
            os.kill(os.getpid(), 9)
"""


def test_a_sequential_loop_becomes_parallel_with_at_most_ten_added_lines() -> None:
    changed = difflib.unified_diff(SEQUENTIAL.splitlines(), PARALLEL.splitlines(), n=0, lineterm="")
    assert sum(line.startswith("+") and not line.startswith("+++") for line in changed) <= 10


def test_killing_one_peer_does_not_stop_the_others(tmp_path: Path) -> None:
    killed = PARALLEL.replace("        optimizer.zero_grad()\n", f"        optimizer.zero_grad()\n{KILLED}")
    (tmp_path / "script.py").write_text(killed)
    done = command(tmp_path, "run", "--workers", "3", "--plan", "malt", "--restarts", "0", "script.py").wait(90)
    assert done.code == 0, done.err
    assert "worker 1 was lost (SIGKILL) in step 7; the others go on" in done.err
    errors = {line.split("error")[1] for line in done.out.splitlines() if "error" in line}
    assert len(errors) == 1, done.out
    assert float(errors.pop()) < 0.05
