"""`shoal bench` from the command line: real runs, the report, and what is refused."""

import json
from pathlib import Path

import pytest
from forked import TRAIN, command, shoal

pytestmark = pytest.mark.usefixtures("tidy")


def test_a_plan_and_a_peer_to_a_goal(tmp_path: Path) -> None:
    every_epoch = TRAIN.replace("run.report(quality=0.5)", "").replace("run.epochs(2)", "run.epochs(9)")
    reporting = every_epoch.replace("        run.log(loss=loss)\n", "    run.report(quality=epoch)\n")
    (tmp_path / "script.py").write_text(reporting)
    words = ["script.py", "--plans", "allreduce", "--peers", "ddp", "--repeats", "1", "--until", "quality>=1"]
    outcome = command(tmp_path, "bench", *words, "--price", "0.1", "--out", "report", "--json").wait(100)
    assert outcome.code == 0, outcome.err
    assert "note: 1 repeats say little" in outcome.err
    report = outcome.json
    assert [row["contestant"] for row in report["rows"]] == ["allreduce, every(1)", "ddp"]
    for row in report["rows"]:
        measured = row["trials"][0]["measured"]
        assert measured["steps"] == 6  # two epochs of nine
        assert row["reached"] == 1
        assert sum(measured["parts"].values()) == pytest.approx(measured["step_seconds"], rel=0.05)
        assert row["cpu_seconds"]["median"] > 0.5
        answered = measured["answered"]
        assert (answered["passes"] > 0, answered["why"]) == (True, "")
        assert 0 < answered["seconds"] <= answered["p99"]
    assert json.loads((tmp_path / "report/bench.json").read_text()) == report
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert names == {"bench.json", "bench.md", "phases.png", "curves.png", "runs"}
    assert len(list((tmp_path / "report/runs").iterdir())) == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nothing.py"], "no script 'nothing.py'"),
        (["script.py", "--plans", "allreduce;;x"], "x"),
        (["script.py", "--peers", "horovod"], "unknown peer 'horovod'"),
        (["script.py", "--until", "soon"], "--until 'soon' is not a goal"),
        (["script.py", "--workers", "two"], "--workers 'two'"),
        (["script.py", "--out", "."], "exists already"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, words: list[str], why: str) -> None:
    (tmp_path / "script.py").write_text("")
    outcome = shoal(tmp_path, "bench", *words)
    assert outcome.code == 2
    assert outcome.err.startswith("shoal: ")
    assert why in outcome.err
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
