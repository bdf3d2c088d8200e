"""`shoal scale` on real workers: members come and go between two steps, all end as one model, no sample is lost."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from forked import Forked, Outcome, command, shoal, soon

from shoal.cli.scale import plan_change
from shoal.core.errors import UsageError
from shoal.core.events import WorkerEnded, WorkerEntered, WorkersScaled
from shoal.core.process import HostProcess
from shoal.core.record import launcher_file
from shoal.launch.live_runs import NoticeSlot, RunNotice, live
from shoal.launch.run_requests import ScaleRequest
from shoal.watch.record import RunRecord
from shoal.watch.tail import JournalTail

pytestmark = pytest.mark.usefixtures("tidy")

SCRIPT = """
import os, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
data = TensorDataset(torch.randn(120, 4), torch.randn(120, 2))
model, optimizer, loader = run.join(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
for epoch in run.epochs(10**6):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.003)
    # the plan changes at one step on all workers, so all of them end alike
    if str(run.plan) == "allreduce, every(1), fp16":
        break
print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""
WAIT = 90.0


def start(folder: Path, *words: str) -> Forked:
    (folder / "script.py").write_text(SCRIPT)
    return command(folder, "run", "--name", "one", *words, "script.py")


def notice(folder: Path) -> RunNotice | None:
    return next((each for each in live() if Path(each.dir) == folder / "runs" / "one"), None)


def members(folder: Path) -> list[int]:
    found = notice(folder)
    return sorted(found.members) if found is not None else []


def pid(folder: Path, worker: int) -> int:
    found = notice(folder)
    assert found is not None
    return next(slot.process.pid for slot in found.slots if slot.worker == worker)


def scale(folder: Path, *words: str) -> Outcome:
    return shoal(folder, "scale", "runs/one", *words)


def finish(folder: Path, running: Forked) -> list[int]:
    """Let all workers end; returns those that did, which hold one model, and every sample was consumed once."""
    assert shoal(folder, "switch", "runs/one", "allreduce, fp16").code == 0
    outcome = running.wait(WAIT)
    assert outcome.code == 0, outcome.err
    said = [line for line in outcome.out.splitlines() if "checksum" in line]
    assert len({line.partition("checksum")[2] for line in said}) == 1, outcome.out
    epochs = json.loads(shoal(folder, "show", "one", "--ledger", "--json").out)["epochs"]
    assert epochs
    assert not any(epoch["missing"] or epoch["duplicate"] for epoch in epochs)
    return sorted(int(line[1 : line.index("]")]) for line in said)


def ends(folder: Path) -> dict[int, str]:
    record = RunRecord.open(folder / "runs" / "one")
    return {
        rank: event.exit for rank in record.ranks for event in record.events(rank) if isinstance(event, WorkerEnded)
    }


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Forked]:
    started = start(tmp_path, "-w", "2", "--spare", "2")
    try:
        assert soon(WAIT, lambda: members(tmp_path) == [0, 1])
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):  # most tests let it come to its end
            os.kill(started.pid, signal.SIGQUIT)
            started.wait(WAIT)


def test_workers_come_and_go_and_all_end_as_one_model(tmp_path: Path, running: Forked) -> None:
    done = scale(tmp_path, "+2")
    assert done.code == 0, done.err
    assert "one trains on 4 workers: 0, 1, 2, 3" in done.err
    done = scale(tmp_path, "-1", "--worker", "0")  # the one that keeps ledger and checkpoints
    assert done.code == 0, done.err
    assert members(tmp_path) == [1, 2, 3]
    assert scale(tmp_path, "2").code == 0
    assert members(tmp_path) == [1, 2]
    assert scale(tmp_path, "+1").code == 0  # in the slot that was left first
    assert members(tmp_path) == [0, 1, 2]
    assert finish(tmp_path, running) == [0, 1, 2]
    assert ends(tmp_path) == {0: "done", 1: "done", 2: "done", 3: "left"}
    folder = tmp_path / "runs" / "one"
    told = [event for event in JournalTail(launcher_file(folder)).read() if isinstance(event, WorkersScaled)]
    assert [(event.added, event.removed) for event in told] == [((2, 3), ()), ((), (0,)), ((), (3,)), ((0,), ())]
    record = RunRecord.open(folder)
    entered = {rank for rank in record.ranks for event in record.events(rank) if isinstance(event, WorkerEntered)}
    assert entered == {0, 2, 3}


def test_a_worker_that_was_added_is_started_again_when_it_is_killed(tmp_path: Path, running: Forked) -> None:
    assert scale(tmp_path, "+1").code == 0
    killed = pid(tmp_path, 2)
    os.kill(killed, signal.SIGKILL)
    assert soon(WAIT, lambda: pid(tmp_path, 2) != killed and 2 in members(tmp_path))
    assert finish(tmp_path, running) == [0, 1, 2]


def test_one_that_is_killed_while_it_is_asked_to_leave_stays_away(tmp_path: Path, running: Forked) -> None:
    frozen = pid(tmp_path, 1)
    os.kill(frozen, signal.SIGSTOP)
    asked = command(tmp_path, "scale", "runs/one", "-1")
    assert soon(WAIT, lambda: "asked to leave" in launcher_file(tmp_path / "runs" / "one").read_text())
    os.kill(frozen, signal.SIGKILL)
    assert asked.wait(WAIT).code == 0
    assert members(tmp_path) == [0]
    assert finish(tmp_path, running) == [0]


def standing(**changes: object) -> RunNotice:
    """A run with workers 0 and 1, and room for two more."""
    process = HostProcess.of(os.getpid())
    slots = tuple(NoticeSlot(worker=worker, host="here", process=process) for worker in (0, 1))
    found = RunNotice(
        run="one", dir="runs/one", plan="allreduce, every(1)", launcher=process, since=0.0, board=0, slots=slots,
        members=(0, 1), coordinator=process, room=2,
    )  # fmt: skip
    return msgspec.structs.replace(found, **changes)


@pytest.mark.parametrize(
    ("text", "chosen", "problem"),
    [
        ("+3", [], "has room for 2 more workers, and not for 3"),
        ("-2", [], "0 of 2 workers would be left"),
        ("0", [], "0 of 2 workers would be left"),
        ("many", [], "'many' is no number of workers"),
        ("+0", [], "'\\+0' is no number of workers"),
        ("-1", [7], "worker 7 does not train here now"),
        ("-1", [0, 1], "--worker names 2 to leave"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, chosen: list[int], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        plan_change(standing(), text, chosen)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"coordinator": None}, "has no coordinator"),
        ({"stopping": True}, "is being stopped"),
        ({"members": (), "slots": ()}, "have not met yet"),
    ],
)
def test_a_run_whose_members_cannot_change_says_why(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        plan_change(standing(**changes), "+1", [])


def test_a_number_alone_is_how_many_there_are_to_be() -> None:
    assert plan_change(standing(), "4", []) == ScaleRequest(add=2)
    assert plan_change(standing(), "1", []) == ScaleRequest(remove=(1,))
    assert plan_change(standing(), "2", []) is None


def test_memory_is_kept_only_where_members_can_change(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    done = shoal(tmp_path, "run", "-w", "2", "--spare", "2", "--plan", "alone", "script.py")
    assert done.code == 2
    assert "--spare 2: the members of this run cannot change" in done.err
