"""`shoal plan explain --cluster --computing` beside what steps through parameter servers really take (row 24)."""

import statistics
import sys
from pathlib import Path

import pytest
from forked import command, shoal

from shoal.core.events import StepFinished
from shoal.lab.needs import missing
from shoal.watch.record import RunRecord

pytestmark = [
    pytest.mark.soak("clock"),
    pytest.mark.skipif(bool(missing()), reason="a lab cannot run here"),
    pytest.mark.timeout(900),
]
LAB = "8 hosts, 10mbit, 5ms"
CONFIGURATIONS = [(2, 1, 8), (2, 2, 8), (2, 2, 64), (4, 1, 8), (4, 1, 64), (4, 2, 16), (4, 2, 64), (4, 4, 8)]
"""Workers, servers, batch; batches of 8 and 32 are measured."""
TRAIN = """
import sys, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Slow(nn.Linear):
    "Computes as long on a busy machine as on a quiet one, and takes no core from the network."

    def forward(self, x):
        time.sleep(0.02 + 0.005 * len(x))
        return super().forward(x)

batch = int(sys.argv[1])
torch.set_num_threads(1)  # as on the hosts of the lab; several wait for one another on a busy machine
run = shoal.start()
torch.manual_seed(7)
model = Slow(250, 200)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
n = 12 * batch * run.size
loader = DataLoader(TensorDataset(torch.randn(n, 250), torch.randn(n, 200)), batch_size=batch)
model, optimizer, loader = run.join(model, optimizer, loader)
for epoch in run.epochs(1):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def run(folder: Path, name: str, batch: int, *words: str) -> None:
    done = shoal(folder, "run", "--name", name, "--checkpoint", "off", *words, "script.py", str(batch))
    assert done.code == 0, done.err


def test_yan_et_al_the_forecast_is_within_15_percent_in_eight_configurations(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TRAIN)
    for batch in (8, 32):
        run(tmp_path, f"alone{batch}", batch, "--workers", "1")
    assert command(tmp_path, "probe", "--lab", LAB).wait(200).code == 0
    computing = ("--computing", "alone8", "--computing", "alone32", "--cluster", "cluster.toml", "--model", "alone8")
    found = {}
    for workers, shards, batch in CONFIGURATIONS:
        name, plan = f"{workers}-{shards}-{batch}", f"server(shards={shards})"
        run(tmp_path, name, batch, "--workers", str(workers), "--lab", LAB, "--plan", plan)
        steps = [each for each in RunRecord.open(tmp_path / "runs" / name).events(0) if isinstance(each, StepFinished)]
        # the lower quartile: other processes of the machine can only make a step longer
        taken = statistics.quantiles([each.seconds / each.steps for each in steps], n=4)[0]
        words = ("plan", "explain", plan, "--workers", str(workers), "--batch", str(batch), *computing, "--json")
        forecast = shoal(tmp_path, *words).json["traffic"]["step_seconds"]
        found[name] = (round(taken, 3), round(forecast, 3), round(forecast / taken, 2))
    table = "\n".join(f"{name}: {taken} s, forecast {said} s, {ratio}" for name, (taken, said, ratio) in found.items())
    sys.stderr.write(f"workers-servers-batch: measured, forecast, their ratio\n{table}\n")  # pytest -s shows it
    assert all(0.85 <= ratio <= 1.15 for _, _, ratio in found.values()), table
