"""How long workers stand still for a switch of the plan: at most a second, on emulated hosts of 100 Mbit/s."""

import json
from pathlib import Path
from typing import Any

import forked
import pytest

from shoal.lab.needs import missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason="; ".join(missing())),
    pytest.mark.usefixtures("tidy"),
    pytest.mark.soak("clock"),
    pytest.mark.timeout(300),
]

SCRIPT = """
import json, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EACH = 60  # steps by each plan
run = shoal.start()
x = torch.randint(-3, 4, (480, 64), generator=torch.Generator().manual_seed(5)).float()
model = nn.Linear(64, 1024, bias=False)
nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
loader = DataLoader(TensorDataset(x), batch_size=4, shuffle=True)
model, optimizer, loader = run.join(model, optimizer, loader, loss="sum")
plans, asked, gaps, last, epochs = PLANS, 0, [], time.monotonic(), 0
for epoch in run.epochs(100):
    for (rows,) in loader:
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        gaps.append((round(time.monotonic() - last, 3), run.step, str(run.plan)))
        last = time.monotonic()
        if asked < len(plans) and run.step > EACH * (asked + 1):
            run.switch(plans[asked])
            asked += 1
    epochs += 1
    if asked == len(plans) and run.step > EACH * (asked + 2):
        break
expected = (1.0 - epochs * x.sum(0)).expand_as(model.weight)
print("said", json.dumps({"exact": torch.equal(model.weight, expected), "stalls": sorted(gaps[5:], reverse=True)[:5]}))
"""


def train(folder: Path, first: str, plans: list[str]) -> list[dict[str, Any]]:
    (folder / "script.py").write_text(SCRIPT.replace("PLANS", repr(plans)))
    words = ("--lab", "4 hosts, 100mbit, 1ms", "--name", "one", "--plan", first, "script.py")
    outcome = forked.command(folder, "run", *words).wait(240.0)
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("on the plan is") == len(plans), outcome.err
    said = [json.loads(line.partition("said ")[2]) for line in outcome.out.splitlines() if "said " in line]
    assert len(said) == 4, outcome.out
    return said


def longest(said: list[dict[str, Any]]) -> list[object]:
    """The longest time between two steps of any worker: seconds, step and plan."""
    return max(each["stalls"][0] for each in said)


def test_a_topology_that_is_switched_loses_no_update_and_stalls_nobody(tmp_path: Path) -> None:
    """Chain, star, tree: Wang et al. 2014, row 12 of docs/systems.toml."""
    said = train(tmp_path, "allreduce(chain)", ["allreduce(star)", "allreduce(tree)"])
    assert all(each["exact"] for each in said)
    assert longest(said)[0] <= 1.0, said


def test_no_pair_of_paces_and_codecs_stalls_anybody(tmp_path: Path) -> None:
    plans = ["local(8)", "allreduce", "allreduce, topk(0.01)", "local(4), int8", "allreduce, int8"]
    said = train(tmp_path, "allreduce", plans)
    assert longest(said)[0] <= 1.0, said
