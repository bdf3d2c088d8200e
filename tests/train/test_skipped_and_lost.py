"""A batch that one worker skips in the step in which another is lost: every sample is used, skipped or dealt again."""

from pathlib import Path

import pytest
from forked import shoal

SCRIPT = """
import os, signal, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(72, 4), torch.randn(72, 2)), batch_size=2)
model, optimizer, loader = run.join(model, optimizer, loader)

def once(name):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

def lose():
    if run.rank == LOST and run.step == 4 and once("lost"):
        os.kill(os.getpid(), signal.SIGKILL)

for epoch in run.epochs(2):
    for x, y in loader:
        BEFORE
        if run.rank == 1 and run.step == 4 and once("skipped"):
            continue
        ((model(x) - y) ** 2).mean().backward()
        AFTER
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("lost", [0, 2], ids=["the first", "another"])
@pytest.mark.parametrize("when", ["BEFORE", "AFTER"], ids=["before its exchange", "after it"])
def test_a_batch_is_skipped_where_a_worker_is_lost(tmp_path: Path, when: str, lost: int) -> None:
    other = "AFTER" if when == "BEFORE" else "BEFORE"
    text = SCRIPT.replace(when, "lose()").replace(other, "pass").replace("LOST", str(lost))
    (tmp_path / "script.py").write_text(text)
    done = shoal(tmp_path, "run", "--workers", "3", "--name", "one", "script.py")
    assert done.code == 0, done.err  # replicas are compared at the end
    assert (tmp_path / "lost").exists()
    assert (tmp_path / "skipped").exists()
    rows = shoal(tmp_path, "show", "one", "--ledger", "--json").json["epochs"]
    assert [(row["missing"], row["duplicate"], row["finished"]) for row in rows] == [(0, 0, True)] * 2, rows
    assert [row["samples"] + row["skipped"] for row in rows] == [72, 72]
    assert rows[0]["skipped"] == 2
