"""Parameter servers on hosts of their own: k of them have k links."""

from pathlib import Path

import pytest
from forked import shoal

from shoal.lab.needs import missing

pytestmark = [pytest.mark.skipif(bool(missing()), reason="a lab cannot run here"), pytest.mark.timeout(600)]

TRAIN = """
import torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
model = nn.Linear(250, 200)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 250), torch.randn(64, 200)), batch_size=1)
model, optimizer, loader = run.join(model, optimizer, loader)
for epoch in run.epochs(1):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def steps_a_second(folder: Path, shards: int) -> float:
    (folder / "script.py").write_text(TRAIN)
    words = ("--workers", "4", "--lab", "8 hosts, 8mbit, 1ms", "--name", f"k{shards}")
    plan = f"server(shards={shards}), every(1)"
    done = shoal(folder, "run", *words, "--plan", plan, "--checkpoint", "off", "--json", "script.py")
    assert done.code == 0, done.err
    assert done.json["losses"] == 0
    return float(done.json["steps"] / done.json["seconds"])


@pytest.mark.soak("clock")
def test_two_and_four_shards_are_nearly_two_and_four_times_as_fast(tmp_path: Path) -> None:
    """A step takes 200 kB of each of four workers to the servers and back, over links of 8 Mbit/s."""
    rates = {shards: steps_a_second(tmp_path, shards) for shards in (1, 2, 4)}
    for shards, rate in rates.items():
        assert rate >= 0.8 * shards * rates[1], rates
