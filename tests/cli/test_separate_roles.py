"""Training, preprocessing and serving as separate roles: processes on hosts of their own that share only TCP.

The server of the model reads checkpoints from the run's folder, as from a file system that machines share; requests
come to it over TCP. Workers and data servers of the lab are in network namespaces of their own: no memory is shared.
"""

import json
from pathlib import Path

import httpx
import pytest
from forked import command, soon
from test_serve import WAIT, address, end

from shoal.lab.needs import missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason="a lab cannot run here"),
    pytest.mark.usefixtures("tidy"),
    pytest.mark.timeout(300),
]
TRAIN = """
import os, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Augmented(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        with open(f"host-{os.getpid()}", "w") as file:
            file.write(os.readlink("/proc/self/ns/net"))
        return torch.full((4,), i / 96) + 0.1 * torch.randn(4), torch.tensor([1.0, -1.0]) * i / 96

run = shoal.start()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Augmented(), batch_size=4, shuffle=True)
model, optimizer, loader = run.join(model, optimizer, loader)
for epoch in run.epochs(200):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
    if run.mean(float(os.path.exists("answered"))) > 0 and epoch >= 2:
        break
"""
MAKE = "from torch import nn\ndef make(): return nn.Linear(4, 2)\n"


def fetched(folder: Path) -> list[dict[str, object]]:
    """What each worker's record says of its batches."""
    lines = [(folder / f"runs/one/worker-{slot}.jsonl").read_text().splitlines() for slot in (0, 1)]
    return [[json.loads(line) for line in each if '"fetched"' in line][-1] for each in lines]


def test_hazelwood_roles_meet_over_tcp_alone(tmp_path: Path) -> None:
    """Two hosts train, two prepare batches, and a server answers requests with what is being trained."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "net.py").write_text(MAKE)
    words = ("--lab", "4 hosts, 1gbit, 1ms", "-w", "2", "--data-servers", "2", "--checkpoint", "5steps")
    run = command(tmp_path, "run", "--name", "one", *words, "train.py")
    assert soon(WAIT, lambda: any((tmp_path / "runs/one/checkpoints").glob("step-*[0-9]"))), run.err.read_text()
    serving = command(tmp_path, "serve", "--follow", "one", "--module", "net.py:make", "--port", "0", "--poll", "50ms")
    found = httpx.post(f"{address(serving)}/predict", content="[[1.0, 1.0, 1.0, 1.0]]")
    assert found.status_code == 200, found.text
    (tmp_path / "answered").touch()
    outcome = run.wait(WAIT)
    assert outcome.code == 0, outcome.err
    end(serving)
    spaces = [file.read_text() for file in tmp_path.glob("host-*")]
    assert len(set(spaces)) == len(spaces) == 4, "two servers, and two workers for what they compare"
    assert all(each["local"] == 0 and min(each["batches"]) > 0 for each in fetched(tmp_path))  # type: ignore[call-overload]
