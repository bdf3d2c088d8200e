"""`local(…, samples=leased)` on real processes: who is faster trains more, every sample counts once, replicas agree."""

import json
import os
import signal
from pathlib import Path

import pytest
from forked import command, soon

from shoal.core.events import ServerCounted
from shoal.launch.live_runs import live
from shoal.watch.record import RunRecord

TRAIN = """
import os, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(SAMPLES, 4), torch.randn(SAMPLES, 2))
model, optimizer, loader = run.join(model, optimizer, DataLoader(data, batch_size=4, shuffle=True, OPTIONS))
made = 0
for epoch in run.epochs(2):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        made += 1
        EACH
open(f"made-{run.rank}.txt", "w").write(str(made))
print("sum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()))
"""
HALTS = """
        if made == 10:
            open(f"halts-{run.rank}", "w").close()
        while made >= 10 and not os.path.exists("go"):
            time.sleep(0.005)"""
WAITS = """
        if run.rank == 0 and made == MADE:
            open("made-enough", "w").close()
        while run.rank == 1 and not os.path.exists("made-enough"):
            time.sleep(0.005)"""
SLOW_LATER = """
        if run.rank == 1 and made > 1 and run.step < 8:
            time.sleep(1)"""
NOTED = """
        if run.step >= 8 and not os.path.exists(f"first-{run.rank}.txt"):
            open(f"first-{run.rank}.txt", "w").write(str(made - 1))"""
"""How many batches this worker had trained when the first round ended."""
LEASED = "local(8, samples=leased)"


def write(folder: Path, each: str, samples: int = 256, options: str = "") -> None:
    text = TRAIN.replace("SAMPLES", str(samples)).replace("OPTIONS", options).replace("EACH", each)
    (folder / "script.py").write_text(text)


def run(folder: Path, *words: str, plan: str = LEASED):
    return command(folder, "run", "--name", "one", "--workers", "2", "--plan", plan, *words, "script.py")


def check(folder: Path, samples: int = 256) -> list[int]:
    """Batches of each worker, after looking that every sample counts once."""
    outcome = command(folder, "show", "one", "--ledger", "--json").wait(60)
    for row in json.loads(outcome.out)["epochs"]:
        assert {"samples": samples, "missing": 0, "duplicate": 0, "finished": True}.items() <= row.items(), row
    return [int((folder / f"made-{rank}.txt").read_text()) for rank in range(2)]


def sums(out: str) -> set[str]:
    return {line[line.index("sum") :] for line in out.splitlines() if "sum" in line}


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        pytest.param(LEASED, "", id="loaded in the loop"),
        pytest.param(LEASED, "num_workers=1", id="by a process that reads ahead", marks=pytest.mark.soak),
        pytest.param("server, async(samples=leased, round=8)", "", id="asynchronous"),
    ],
)
def test_a_fast_worker_trains_what_a_slow_one_does_not(tmp_path: Path, plan: str, options: str) -> None:
    """Equal shares give each worker 8 batches of a round: this script would wait for ever."""
    write(tmp_path, WAITS.replace("MADE", "11"), options=options)
    outcome = run(tmp_path, plan=plan).wait(60)
    assert outcome.code == 0, outcome.err
    assert sum(check(tmp_path)) == 2 * 64
    assert len(sums(outcome.out)) == 1


def test_a_lead_under_a_bound_ends_at_the_bound(tmp_path: Path) -> None:
    """Worker 1 never begins its third step until worker 0 has made five; at six it would wait for it."""
    write(tmp_path, WAITS.replace("MADE", "5").replace("run.rank == 1 and", "run.rank == 1 and made >= 2 and"))
    outcome = run(tmp_path, plan="server, stale(3, samples=leased, round=8)").wait(60)
    assert outcome.code == 0, outcome.err
    check(tmp_path)
    told = [each for each in RunRecord.open(tmp_path / "runs/one").events(0) if isinstance(each, ServerCounted)][-1]
    assert max(int(behind) for behind, steps in told.staleness.items() if steps) == 3


def test_backup_workers_a_late_step_comes_to_nothing_and_its_samples_are_leased_again(tmp_path: Path) -> None:
    """Worker 1 is in its first step until worker 0 has made eleven, which wait for nobody."""
    write(tmp_path, WAITS.replace("MADE", "11"))
    outcome = run(tmp_path, plan="server, deadline(60, backups=1, round=20)").wait(60)
    assert outcome.code == 0, outcome.err
    assert len(sums(outcome.out)) == 1
    record = RunRecord.open(tmp_path / "runs/one")
    told = [[e for e in record.events(rank) if isinstance(e, ServerCounted)][-1] for rank in range(2)]
    made = check(tmp_path)
    assert told[1].late >= 1
    assert [each.pushes for each in told] == made
    assert sum(each.unused for each in told) == 4 * sum(each.late for each in told) == 4 * (sum(made) - 2 * 64)


def test_absp_a_round_ends_when_the_fastest_is_through(tmp_path: Path) -> None:
    """The slow worker is in its first step until the fast one has made its eight. The news that the round ends needs
    two messages, so its later steps take a second each: seven are longer than any message between the living."""
    write(tmp_path, WAITS.replace("MADE", "8") + SLOW_LATER + NOTED)
    outcome = run(tmp_path, plan="local(8, samples=leased, end=fastest)").wait(60)
    assert outcome.code == 0, outcome.err
    assert sum(check(tmp_path)) == 2 * 64
    assert len(sums(outcome.out)) == 1
    assert (tmp_path / "first-0.txt").read_text() == "8"
    assert int((tmp_path / "first-1.txt").read_text()) < 8


def test_a_script_that_leaves_its_loop_ends_the_pass_of_all(tmp_path: Path) -> None:
    write(tmp_path, WAITS.replace("MADE", "3") + "\n        if run.rank == 0 and made == 3: break")
    outcome = run(tmp_path).wait(60)
    assert outcome.code == 0, outcome.err
    assert len(sums(outcome.out)) == 1
    made = [int((tmp_path / f"made-{rank}.txt").read_text()) for rank in range(2)]
    assert 64 + 3 <= sum(made) <= 64 + 16


def test_a_coordinator_that_is_killed_leases_on(tmp_path: Path) -> None:
    write(tmp_path, HALTS, samples=512)
    running = run(tmp_path)
    assert soon(60, lambda: list(tmp_path.glob("halts-*")))
    try:
        notice = next(each for each in live() if Path(each.dir).is_relative_to(tmp_path))
        assert notice.coordinator is not None
        os.kill(notice.coordinator.pid, signal.SIGKILL)
    finally:
        (tmp_path / "go").touch()
    outcome = running.wait(60)
    assert outcome.code == 0, outcome.err
    check(tmp_path, 512)
    assert len(sums(outcome.out)) == 1


def test_a_stream_cannot_be_leased(tmp_path: Path) -> None:
    write(tmp_path, "pass")
    text = (tmp_path / "script.py").read_text().replace("DataLoader(data, batch_size=4, shuffle=True, )", "[data[:4]]")
    (tmp_path / "script.py").write_text(text)
    outcome = run(tmp_path).wait(60)
    assert outcome.code != 0
    assert "no map-style dataset" in outcome.err
