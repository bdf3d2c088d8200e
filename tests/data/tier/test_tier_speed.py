"""More data servers make a run faster until its computing is the limit, and then the trainer waits for next to nothing.

Samples and steps cost sleep, not processor time: two loaded cores then measure the tier and not themselves.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from forked import shoal

pytestmark = pytest.mark.timeout(600)

SAMPLE, STEP, BATCH, STEPS, FIRST = 0.020, 0.040, 8, 80, 20
TRAIN = f"""
import time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return {BATCH * STEPS}
    def __getitem__(self, index):
        time.sleep({SAMPLE})
        return torch.randn(784), index % 10

run = shoal.start()
model = nn.Linear(784, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = run.join(model, optimizer, DataLoader(Slow(), batch_size={BATCH}, shuffle=True))
for epoch in run.epochs(1):
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        time.sleep({STEP})
        optimizer.step()
        optimizer.zero_grad()
"""


def steps_of(folder: Path, servers: int) -> tuple[float, float]:
    """Steps a second, and the share of them that the trainer waited, once all servers are there."""
    (folder / "script.py").write_text(TRAIN)
    words = ("--data-servers", str(servers), "--name", f"k{servers}", "--checkpoint", "off")
    done = shoal(folder, "run", "-w", "1", *words, "script.py")
    assert done.code == 0, done.err
    lines = (folder / f"runs/k{servers}/worker-0.jsonl").read_text().splitlines()
    steps: list[dict[str, Any]] = [json.loads(line) for line in lines if '"event":"step"' in line]
    later = [step for step in steps if step["step"] >= FIRST]
    seconds = sum(step["seconds"] for step in later)
    return len(later) / seconds, sum(step["load"] for step in later) / seconds


@pytest.mark.soak("clock")
def test_servers_raise_throughput_until_the_trainer_computes_all_the_time(tmp_path: Path) -> None:
    """A batch takes four times as long as a step: one server makes a quarter of the speed, two a half, eight all."""
    found = {servers: steps_of(tmp_path, servers) for servers in (1, 2, 8)}
    rates = {servers: rate for servers, (rate, _) in found.items()}
    assert rates[2] > 1.7 * rates[1], found
    assert rates[8] > 1.6 * rates[2], found
    assert found[8][1] < 0.05, found
