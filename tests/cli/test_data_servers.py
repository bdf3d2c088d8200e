"""`--data-servers` under other plans, and `shoal data` for the runs of others."""

import json
import os
import signal
from pathlib import Path

import pytest
from forked import command, shoal, soon

from shoal.launch.address import find_free_port

pytestmark = pytest.mark.usefixtures("tidy")
TRAIN = """
import torch, shoal
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Augmented(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, i):
        return torch.full((4,), i / 48) + 0.1 * torch.randn(4), torch.tensor([1.0, -1.0]) * i / 48

run = shoal.start()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = run.join(model, optimizer, DataLoader(Augmented(), batch_size=4, shuffle=True))
for epoch in run.epochs(2):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
if run.is_main:
    print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""


def fetched(folder: Path, name: str, slot: int = 0) -> dict[str, object]:
    """What a worker's record says of its batches."""
    lines = (folder / f"runs/{name}/worker-{slot}.jsonl").read_text().splitlines()
    found: dict[str, object] = [json.loads(line) for line in lines if '"fetched"' in line][-1]
    return found


@pytest.mark.parametrize(
    "plan",
    [
        "local(2, samples=leased)",
        pytest.param("shared", marks=pytest.mark.soak),
        pytest.param("server, async(samples=leased, round=6)", marks=pytest.mark.soak),
        pytest.param("project-adam", marks=pytest.mark.soak),
    ],
)
def test_samples_count_once_under_any_plan(tmp_path: Path, plan: str) -> None:
    """Batches that are asked ahead hold leases, which come back."""
    (tmp_path / "train.py").write_text(TRAIN)
    done = shoal(tmp_path, "run", "-w", "2", "--plan", plan, "--data-servers", "2", "--name", "one", "train.py")
    assert done.code == 0, done.err
    epochs = json.loads(shoal(tmp_path, "show", "one", "--ledger", "--json").out)["epochs"]
    assert [(each["samples"], each["missing"], each["duplicate"]) for each in epochs] == [(48, 0, 0)] * 2
    assert fetched(tmp_path, "one")["local"] == 0


def test_a_server_of_another_command_prepares_for_those_with_an_invitation(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    shoal(tmp_path, "keys", "new", "data.key")
    shoal(tmp_path, "keys", "invite", "data.key", "--out", "run.key")
    where = f"127.0.0.1:{find_free_port('127.0.0.1')}"
    server = command(tmp_path, "data", "--key", "data.key", where, "train.py")
    assert soon(60.0, lambda: "data server at" in server.err.read_text())
    words = ("run", "-w", "1", "--data-servers", f"{where}=run.key")
    first = shoal(tmp_path, *words, "--name", "one", "train.py")
    again = shoal(tmp_path, *words[:-1], "1", "--name", "two", "train.py")
    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert first.out == again.out
    assert (fetched(tmp_path, "one")["batches"], fetched(tmp_path, "one")["local"]) == ([24], 0)
    os.kill(server.pid, signal.SIGINT)
    assert server.wait(60).code == 130


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("127.0.0.1:7801", "train.py"), "there is no key; make one with shoal keys new"),
        (("--key", "none.key", "127.0.0.1:7801", "train.py"), "cannot read the keys in 'none.key'"),
        (("--key", "none.key", "127.0.0.1:7801", "nothing.py"), "no script 'nothing.py' here"),
    ],
)
def test_a_wrong_command_is_refused(tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = shoal(tmp_path, "data", *words)
    assert (done.code, error in done.err, done.err.count("\n")) == (2, True, 1), done.err
