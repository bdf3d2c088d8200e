"""A benchmark of real runs; each is the command a trial would start, in a child that has imported torch already."""

from pathlib import Path
from typing import Any

import pytest
from forked import TRAIN, Forked, _command
from made_up import setting

from shoal.bench import peer
from shoal.bench.contestant import BenchContestant, TrialOrder
from shoal.bench.measure import measure
from shoal.bench.report import BenchReport
from shoal.bench.report_files import write_report
from shoal.bench.session import BenchSession
from shoal.bench.trial import BenchTrial, complete, environment
from shoal.core.goal import TrainingGoal
from shoal.core.record import run_dir
from shoal.lab.needs import missing
from shoal.watch.record import RunRecord

LEARNING = TRAIN.replace("run.report(quality=0.5)", "").replace("run.log(loss=loss)", "run.report(quality=epoch)")


def by_peer(words: list[str]) -> None:
    raise SystemExit(peer.main(words))


def forked_trial(
    contestant: BenchContestant, order: TrialOrder, repeat: int, goal: TrainingGoal | None, price: float | None
) -> BenchTrial:
    """As `run_trial`, without the seconds of imports."""
    words = contestant.command(order)[3:]  # without the interpreter, -m and the module
    folder = Path(order.script).parent
    body = (lambda: by_peer(words)) if contestant.peer else (lambda: _command(words))
    outcome = Forked(folder, body, environment(goal)).wait(60)
    assert outcome.code == 0, outcome.err
    plain = BenchTrial(repeat=repeat, seed=order.seed, run=order.name, exit=0, cpu_seconds=1.0)
    return complete(plain, measure(RunRecord.open(run_dir(order.runs, order.name))), goal, price)


def bench(tmp_path: Path, **words: Any) -> tuple[BenchReport, str]:
    """The report of real runs, and its page."""
    (tmp_path / "script.py").write_text(LEARNING)
    report = BenchSession(setting(tmp_path, script=str(tmp_path / "script.py"), **words), forked_trial).run()
    return report, write_report(report, tmp_path)[1].read_text()


def test_time_latency_and_cost_over_three_seeds(tmp_path: Path) -> None:
    words = {"repeats": 3, "until": TrainingGoal.parse("quality>=1"), "other_seeds": True, "price": 0.1}
    report, page = bench(tmp_path, contestants=(BenchContestant("allreduce, every(1)"),), **words)
    assert report.seeds == [0, 1, 2]
    (row,) = report.rows
    assert row.reached == 3
    for figure in (row.goal_seconds, row.answer_seconds, row.answer_p99, row.cost):
        assert figure is not None
        assert figure.number == 3
        assert 0 < figure.low <= figure.median <= figure.high
    assert all(column in page for column in ("| answer ms | p99 ms |", "s to quality>=1", "| cost |"))


@pytest.mark.skipif(bool(missing()), reason="; ".join(missing()))
def test_contestants_in_a_lab(tmp_path: Path) -> None:
    report, page = bench(tmp_path, repeats=1, lab="2 hosts, 200mbit, 1ms")
    for row in report.rows:
        assert row.step_seconds is not None
        assert row.step_seconds.median > 0.002  # whatever comes from another host has passed two links
    assert "the lab `2 hosts, 200mbit, 1ms`" in page
