"""`shoal ps`: the runs that live, and nothing of those that do not."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forked import Forked, command, reap, shoal, soon

from shoal.core.private import private_folder
from shoal.lab.needs import missing
from shoal.watch.running import running as live_runs

pytestmark = pytest.mark.usefixtures("tidy")

WAIT = 60.0
FOREVER = """
import time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
model, optimizer, loader = run.join(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
for epoch in run.epochs(10**9):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
"""


def ps() -> list[dict[str, Any]]:
    """What `shoal ps --json` would say, without a process of its own."""
    return msgspec.to_builtins(live_runs())


def train(folder: Path, *words: str, script: str = FOREVER) -> Forked:
    """A run named one that has made some steps."""
    (folder / "script.py").write_text(script)
    running = command(folder, "run", "--name", "one", *words, "script.py")
    trains()
    return running


def trains(least: int = 3) -> list[dict[str, Any]]:
    """What `shoal ps` says once all workers of all runs have made some steps."""
    found: list[list[dict[str, Any]]] = []

    def there() -> bool:
        found[:] = [ps()]
        members = [member for run in found[0] for member in run["members"]]
        return bool(members) and all(m["rank"] is not None and m["step"] >= least for m in members)

    assert soon(WAIT, there), found
    return found[0]


def end(running: Forked) -> None:
    os.kill(running.pid, signal.SIGQUIT)
    assert running.wait(WAIT).code == 130


def test_a_live_run_is_shown_with_its_workers(tmp_path: Path) -> None:
    running = train(tmp_path, "--workers", "2")
    (run,) = ps()
    assert (run["run"], run["plan"], run["pid"], run["state"]) == ("one", "allreduce, every(1)", running.pid, "running")
    assert Path(run["dir"]) == tmp_path / "runs" / "one"
    assert [(m["worker"], m["rank"], m["host"], m["starts"]) for m in run["members"]] == [
        (0, 0, os.uname().nodename, 1),
        (1, 1, os.uname().nodename, 1),
    ]
    children = {int(word) for word in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()}
    assert {m["pid"] for m in run["members"]} | {run["coordinator"]["pid"]} == children
    assert all(m["step"] >= 3 and 0 <= m["last_progress"] < WAIT for m in run["members"])
    assert all(
        m["state"] in ("loading", "computing", "exchanging", "updating", "synchronizing") for m in run["members"]
    )
    assert soon(WAIT, lambda: ps()[0]["step"] > run["step"]), "it is the present that is shown"
    (printed,) = json.loads(shoal(tmp_path, "ps", "--json").out)["runs"]
    assert (printed.keys(), printed["pid"]) == (run.keys(), run["pid"])
    text = shoal(tmp_path, "ps").out
    assert "one: running for" in text
    assert f"coordinator: running (pid {run['coordinator']['pid']})" in text
    os.kill(run["members"][1]["pid"], signal.SIGSTOP)
    assert soon(WAIT, lambda: ps()[0]["members"][1]["state"] in ("stopped", "lost", "starting again"))
    end(running)
    assert ps() == []
    assert "no run of yours is live" in shoal(tmp_path, "ps").out
    assert not private_folder().exists()


def test_a_worker_that_was_replaced_is_shown(tmp_path: Path) -> None:
    running = train(tmp_path, "--workers", "2")
    first = ps()[0]["members"][1]
    os.kill(first["pid"], signal.SIGKILL)
    assert soon(WAIT, lambda: ps()[0]["members"][1]["pid"] != first["pid"])
    (run,) = trains()
    assert (run["members"][1]["starts"], run["members"][1]["reason"]) == (2, "SIGKILL")
    assert "started 2 times" in shoal(tmp_path, "ps").out
    end(running)


@pytest.mark.parametrize("words", [["--workers", "1"], ["--workers", "2", "--plan", "alone"]])
def test_runs_without_a_coordinator_are_shown_too(tmp_path: Path, words: list[str]) -> None:
    running = train(tmp_path, *words)
    (run,) = ps()
    assert run["coordinator"] is None
    assert [m["rank"] for m in run["members"]] == list(range(int(words[1])))
    end(running)


def test_a_run_that_was_killed_is_not_shown_and_nothing_of_it_stays(tmp_path: Path) -> None:
    running = train(tmp_path, "--workers", "2")
    (run,) = ps()
    (notice,) = private_folder().iterdir()
    sockets = Path(json.loads(notice.read_bytes())["folder"])
    assert sockets.exists()
    for pid in (run["coordinator"]["pid"], running.pid):  # not even the coordinator can tidy up
        os.kill(pid, signal.SIGKILL)
    reap(running.pid, WAIT)
    assert soon(WAIT, lambda: ps() == [] and not sockets.exists())
    assert not private_folder().exists()


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    private_folder().mkdir(mode=0o755)
    outcome = shoal(tmp_path, "ps")
    assert (outcome.code, outcome.out) == (2, "")
    assert "is not yours alone" in outcome.err
    (tmp_path / "script.py").write_text("print('trained')")
    outcome = shoal(tmp_path, "run", "script.py")
    assert (outcome.code, outcome.out) == (0, "[0] trained\n")
    assert "shoal ps will not show this run" in outcome.err
    private_folder().rmdir()


@pytest.mark.skipif(bool(missing()), reason="; ".join(missing()))
def test_workers_in_a_lab_are_shown_with_their_hosts(tmp_path: Path) -> None:
    running = train(tmp_path, "--lab", "2 hosts, 100mbit")
    (run,) = ps()
    assert run["lab"].startswith("2 hosts")
    assert [m["host"] for m in run["members"]] == ["0", "1"]
    end(running)
