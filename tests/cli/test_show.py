"""`shoal show` and `shoal compare`: what is drawn, what is JSON, what is refused."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from shoal.cli.compare import compare
from shoal.cli.show import show
from shoal.core.events import StepFinished, ValuesLogged, WorkerEnded, WorkerStarted
from shoal.core.journal import EventJournal
from shoal.core.record import RunInfo, worker_file, write_info

PHASES = {"load": 0.0, "forward_backward": 0.5, "exchange_wait": 0.25, "encode": 0.0, "update": 0.25}


def fake_run(root: Path, run: str, began: float, steps: int) -> None:
    """One worker ended well, one was killed in the middle of a line, one left an empty file."""
    facts = {"plan": "allreduce(ring)", "workers": 3, "seed": 1, "script": "train.py", "command": []}
    write_info(root / run, RunInfo(run=run, started=began, versions={}, machine={}, **facts))
    for rank in range(2):
        journal = EventJournal(worker_file(root / run, rank))
        journal.emit(WorkerStarted(at=1.0, rank=rank, size=2, host="far", pid=9, threads=1, device="cpu"))
        for step in range(steps):
            journal.emit(StepFinished(at=1.0, step=step, epoch=0, samples=8, seconds=1.0, **PHASES))
            journal.emit(ValuesLogged(at=1.0, step=step, values={"loss": 1.0 / (step + 1)}))
        if rank == 0:
            journal.emit(WorkerEnded(at=2.0, exit="done"))
        journal.close()
    with worker_file(root / run, 1).open("ab") as file:
        file.write(b'{"event":"step","at"')
    worker_file(root / run, 2).touch()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    fake_run(tmp_path, "older", 1.0, steps=2)
    fake_run(tmp_path, "newer", 2.0, steps=4)
    return tmp_path


def call(root: Path, *words: str) -> Result:
    app = typer.Typer()
    app.command()(show)
    app.command()(compare)
    return CliRunner().invoke(app, [*words, "--runs", str(root)])


def test_the_newest_run_is_shown(runs: Path) -> None:
    result = call(runs, "show")
    assert result.exit_code == 0
    assert "newer" in result.stdout
    assert "4 steps, 64 samples in 4.00 s" in result.stdout
    assert "2 steps" in call(runs, "show", "older").stdout


def test_json_is_one_object(runs: Path) -> None:
    shown = json.loads(call(runs, "show", "--json").stdout)
    assert list(shown) == ["info", "summary", "quantities", "verdict", "workers", "stages"]
    assert shown["info"]["run"] == shown["summary"]["run"] == "newer"
    assert (shown["summary"]["steps"], shown["summary"]["exit"]) == (4, -1)
    assert [worker["state"] for worker in shown["workers"]] == ["done", "unknown", "silent"]
    assert shown["workers"][1]["samples"] == 32


@pytest.mark.parametrize("words", [("show", "oldr"), ("compare", "newer", "oldr")])
def test_a_missing_run_is_refused(runs: Path, words: tuple[str, ...]) -> None:
    result = call(runs, *words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == f"shoal: no run 'oldr' in {str(runs)!r}; the nearest is 'older'\n"


@pytest.mark.parametrize("words", [("show", "--json"), ("show", "--ledger", "--json"), ("compare", "--json")])
def test_a_run_is_named_by_its_folder_too(runs: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    command, *options = words
    by_id = call(runs, command, "older", *options)
    by_path = call(runs / "elsewhere", command, "./older/", *options)
    assert (by_path.exit_code, by_path.stdout) == (0, by_id.stdout)


def test_the_folder_may_come_from_the_environment(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_RUNS", str(runs))
    app = typer.Typer()
    app.command()(show)
    assert "newer" in CliRunner().invoke(app, []).stdout


def test_runs_are_compared_to_the_first(runs: Path) -> None:
    assert "2.00x" in call(runs, "compare", "older", "newer").stdout
    compared = json.loads(call(runs, "compare", "older", "newer", "--json").stdout)["runs"]
    assert [each["summary"]["run"] for each in compared] == ["older", "newer"]
    assert [each["seconds_ratio"] for each in compared] == [1.0, 2.0]
    assert [each["samples_per_second_ratio"] for each in compared] == [1.0, 1.0]


def test_comparing_nothing_is_refused(runs: Path) -> None:
    assert call(runs, "compare").exit_code == 2
