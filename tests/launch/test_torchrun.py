"""The same script under `shoal run`, torchrun and by hand on two hosts: the same parameters in the end."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from forked import TRAIN, Outcome, python, soon, train

SCRIPT = TRAIN.replace("torch.manual_seed(7)\n", "")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("SHOAL_SEED", "4")


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `shoal run --workers 2` comes to."""
    return train(tmp_path_factory.mktemp("wanted"), SCRIPT, "--workers", "2", "--seed", "4").checksum


SMALL = """
import torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
run = shoal.start()
torch.manual_seed(0)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, loader = run.join(model, optimizer, DataLoader(TensorDataset(torch.ones(8, 2), torch.ones(8)), 2))
"""


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def by_hand(folder: Path, script: str, hosts: int, **env: str) -> list[Outcome]:
    """Two workers in torchrun's manner, on one host or on two."""
    local = str(2 // hosts)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": local}
    (folder / "script.py").write_text(script)
    running = [python(folder, RANK=str(rank), **place, **env) for rank in range(2)]
    return [worker.wait() for worker in running]


@pytest.mark.parametrize("engine", ["auto", pytest.param("collective", marks=pytest.mark.soak)])
def test_torchrun(tmp_path: Path, wanted: str, engine: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "script.py"]
    env = os.environ | {"SHOAL_ENGINE": engine, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(torchrun, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == wanted
    (run,) = (tmp_path / "runs").iterdir()
    assert {path.name for path in run.iterdir()} >= {"run.json", "worker-0.jsonl", "worker-1.jsonl"}


@pytest.mark.parametrize(
    ("hosts", "trusted", "kind"),
    [(1, "", "SharedGroup"), (2, "", "LinkedGroup"), (2, "1", "TorchGroup")],
    ids=["one host", "two hosts", "two trusted hosts"],
)
def test_by_hand(tmp_path: Path, wanted: str, hosts: int, trusted: str, kind: str) -> None:
    outcomes = by_hand(tmp_path, SCRIPT + "\nprint(type(run._group).__name__)", hosts, SHOAL_TRUSTED=trusted)
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert outcomes[0].checksum == wanted
    assert [outcome.out.splitlines()[-1] for outcome in outcomes] == [kind, kind]


@pytest.mark.parametrize("hosts", [1, 2], ids=["one host", "two hosts"])
@pytest.mark.parametrize("when", ["at the end", "by hand"])
def test_replicas_that_differ_at_the_end_are_named(tmp_path: Path, hosts: int, when: str) -> None:
    """After the last comparison of an epoch: nobody else would notice."""
    spoil = (
        "\nx, y = next(iter(loader))\nmodel(x).sum().backward()\n"
        "if run.rank: model.weight.grad.add_(1)\noptimizer.step()\n"
    )
    close = "\nrun.close()\n" if when == "by hand" else ""
    outcomes = by_hand(tmp_path, SMALL + spoil + close, hosts)
    assert sorted(outcome.code for outcome in outcomes) in ([0, 1], [1, 1]), outcomes
    told = "".join(outcome.err for outcome in outcomes)
    assert "worker 1 and worker 0 hold different parameters" in told


def test_a_shared_group_is_left_for_links_where_memory_cannot_be_shared(tmp_path: Path, wanted: str) -> None:
    blind = (
        "from shoal.hosts.arena import SharedArena\ndef no(*_): raise PermissionError\nSharedArena.of_process = no\n"
    )
    outcomes = by_hand(tmp_path, f"{blind}{SCRIPT}\nprint(type(run._group).__name__)", 1)
    assert outcomes[0].checksum == wanted
    assert [outcome.out.splitlines()[-1] for outcome in outcomes] == ["LinkedGroup", "LinkedGroup"]


def test_hosts_with_several_workers_add_up_inside_first(tmp_path: Path) -> None:
    """Two hosts of two, as torchrun would start them: what four workers of one host come to, but for rounding."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    (tmp_path / "script.py").write_text(SCRIPT + "\nprint(list(run._group.leaders))")
    slots = [{"RANK": str(r), "LOCAL_RANK": str(r % 2), "GROUP_RANK": str(r // 2)} for r in range(4)]
    outcomes = [worker.wait() for worker in [python(tmp_path, **slot, **place) for slot in slots]]
    assert [outcome.code for outcome in outcomes] == [0] * 4, outcomes
    assert [outcome.out.splitlines()[-1] for outcome in outcomes] == ["[0, 2]"] * 4
    one_host = train(tmp_path, SCRIPT, "--workers", "4", "--seed", "4").checksum
    sums = [[float(word) for word in text.split()[1:]] for text in (outcomes[0].checksum, one_host)]
    assert sums[0] == pytest.approx(sums[1], abs=2e-6)


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_lost_worker_ends_the_other(tmp_path: Path, hosts: int) -> None:
    script = SCRIPT.replace(
        "        run.log", "        if run.rank == 1 and epoch == 1: import os; os._exit(7)\n        run.log"
    )
    first, second = by_hand(tmp_path, script, hosts, SHOAL_DEADLINE="8")
    assert (first.code, second.code) == (1, 7)
    assert first.err.splitlines()[-1].startswith("shoal.core.errors.PeerLost: "), first.err


def test_a_script_may_have_its_own_process_group(tmp_path: Path, wanted: str) -> None:
    own = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
    check = "\nt = torch.ones(1); dist.all_reduce(t); assert t == 2; dist.destroy_process_group()"
    outcomes = by_hand(tmp_path, own + SCRIPT + check, 2)
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert outcomes[0].checksum == wanted


def test_a_world_of_one_under_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = python(tmp_path, SCRIPT, SHOAL_RUNS="elsewhere", SHOAL_NAME="solo").wait()
    assert outcome.code == 0, outcome.err
    info = json.loads((tmp_path / "elsewhere/solo/run.json").read_text())
    assert (info["workers"], info["seed"]) == (1, 4)
    assert outcome.checksum == train(tmp_path, SCRIPT, "--workers", "1", "--seed", "4").checksum
    monkeypatch.delenv("SHOAL_RUNS")
    assert python(tmp_path, "import shoal; shoal.start()").wait().code == 0
    assert soon(30, lambda: len(list((tmp_path / "runs").iterdir())) == 2)
