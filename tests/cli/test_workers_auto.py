"""`shoal run --workers auto`: what it refuses, and on real processes that it finds how many a device has room for."""

from pathlib import Path

import pytest
from forked import command, refused

DEVICE = """
import fcntl, os, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PERMITS = [open(f"permit-{n}", "a") for n in range(3)]

def compute():
    # a device that holds three workers at a time
    while True:
        for permit in PERMITS:
            try:
                fcntl.flock(permit, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            time.sleep(0.1)
            fcntl.flock(permit, fcntl.LOCK_UN)
            return
        time.sleep(0.001)

run = shoal.start()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(4000, 4), torch.randn(4000, 2))
model, optimizer, loader = run.join(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
for _ in run.epochs(1):
    for x, y in loader:
        compute()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "two"], "--workers 'two' is no number of worker processes; write --workers 2, or auto"),
        (["--workers", "auto", "--lab", "2 hosts"], "--workers auto with --lab: it adds workers of this host alone"),
        (["--workers", "auto", "--share", "2,1"], "--workers auto with --share"),
        (["--workers", "auto", "--spare", "3", "--plan", "shared"], "the members of this run cannot change"),
    ],
)
def test_what_it_refuses(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "script.py").write_text("")
    outcome = refused(tmp_path, "run", *words, "script.py")
    assert outcome.code == 2
    assert said in outcome.err


@pytest.mark.soak("clock")
@pytest.mark.timeout(300)
def test_row_79_a_run_finds_how_many_workers_a_device_has_room_for(tmp_path: Path) -> None:
    """Steps of 100 ms, so that what a step costs beside is little: two and a half times as quick at least."""
    (tmp_path / "script.py").write_text(DEVICE)
    done = command(tmp_path, "run", "--workers", "auto", "--spare", "4", "script.py").wait(250)
    assert done.code == 0, done.err
    (found,) = [line for line in done.err.splitlines() if "is best" in line]
    assert "3 is best" in found, done.err
