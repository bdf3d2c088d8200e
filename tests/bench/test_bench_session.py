"""A benchmark from first turn to report, with runs that are made up."""

from pathlib import Path

import msgspec
import pytest
from made_up import failed, setting, twice_as_slow

from shoal.bench.cells import cells, header
from shoal.bench.contestant import BenchContestant, TrialOrder
from shoal.bench.draw import draw
from shoal.bench.report import BenchReport
from shoal.bench.report_files import markdown, write_report
from shoal.bench.scaling import verdict
from shoal.bench.session import BenchSession, open_folder, run_name, worker_counts
from shoal.bench.table import ending
from shoal.core.errors import UsageError
from shoal.core.events import InferenceTimed
from shoal.core.goal import TrainingGoal
from shoal.core.ids import check_id
from shoal.watch.console import open_console


def test_contestants_take_turns_and_ratios_are_paired(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    def note(contestant: BenchContestant, order: TrialOrder, repeat: int, *rest: object):  # type: ignore[no-untyped-def]
        seen.append((contestant.name, repeat, order.seed))
        return twice_as_slow(contestant, order, repeat, *rest)  # type: ignore[arg-type]

    report = BenchSession(setting(tmp_path, repeats=3, other_seeds=True, seed=5), note).run()
    first, second = "allreduce, every(1)", "ddp"
    assert [name for name, _, _ in seen] == [first, second, second, first, first, second]
    assert [seed for _, _, seed in seen] == [5, 5, 6, 6, 7, 7]
    assert report.seeds == [5, 6, 7]
    slow = report.rows[1]
    assert slow.step_ratio is not None
    assert slow.step_seconds is not None
    assert (slow.step_ratio.median, slow.step_ratio.low, slow.step_ratio.high) == (2.0, 2.0, 2.0)
    assert slow.step_seconds.median == pytest.approx(0.02)
    assert slow.bytes_per_step == 200


def test_answers_stand_in_the_table_or_why_there_are_none(tmp_path: Path) -> None:
    def unanswered(contestant: BenchContestant, order: TrialOrder, repeat: int, *rest: object):  # type: ignore[no-untyped-def]
        found = twice_as_slow(contestant, order, repeat, *rest)  # type: ignore[arg-type]
        if not contestant.peer:
            return found
        nothing = msgspec.structs.replace(found.measured, answered=InferenceTimed(at=0.0, why="2 models"))
        return msgspec.structs.replace(found, measured=nothing)

    report = BenchSession(setting(tmp_path, repeats=1), unanswered).run()
    first, second = ([cell.strip() for cell in cells(row, None, False)] for row in report.rows)
    names = header(None, False)
    assert [first[names.index(name)] for name in ("answer ms", "p99 ms")] == ["1.00", "2.00"]
    assert [second[names.index(name)] for name in ("answer ms", "p99 ms")] == ["2 models", "-"]


def test_time_to_a_goal(tmp_path: Path) -> None:
    report = BenchSession(
        setting(tmp_path, repeats=3, until=TrainingGoal.parse("accuracy>=0.9"), price=1.0), twice_as_slow
    ).run()
    fast, slow = report.rows
    assert fast.goal_seconds is not None
    assert slow.goal_ratio is not None
    assert (fast.goal_seconds.median, slow.goal_ratio.median, slow.reached) == (1.0, 2.0, 3)
    missed = (
        BenchSession(setting(tmp_path, repeats=2, until=TrainingGoal.parse("accuracy>=2")), twice_as_slow).run().rows[0]
    )
    assert (missed.goal_seconds, missed.reached) == (None, 0)


def test_efficiency_and_where_it_stops_paying(tmp_path: Path) -> None:
    report = BenchSession(setting(tmp_path, workers=(1, 2, 4), repeats=3), twice_as_slow).run()
    found = report.scaling[0]
    assert [scale.efficiency.mean for scale in found.scales] == pytest.approx([1.0, 0.75, 0.625])
    assert found.stops_at is None
    assert verdict(found).endswith("every step up to 4 workers pays.")

    def crowded(contestant: BenchContestant, order: TrialOrder, *rest: object):  # type: ignore[no-untyped-def]
        helpful = msgspec.structs.replace(order, workers=min(order.workers, 2))
        return twice_as_slow(contestant, helpful, *rest)  # type: ignore[arg-type]

    found = BenchSession(setting(tmp_path, workers=(1, 2, 4), repeats=3), crowded).run().scaling[0]
    assert found.stops_at == 4
    assert "stops paying at 4 workers (1.00 times" in verdict(found)


def test_a_failed_run_is_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    def often(contestant: BenchContestant, order: TrialOrder, repeat: int, *rest: object):  # type: ignore[no-untyped-def]
        return failed(repeat) if contestant.peer else twice_as_slow(contestant, order, repeat, *rest)  # type: ignore[arg-type]

    report = BenchSession(setting(tmp_path, repeats=2), often).run()
    assert report.exit == 1
    assert report.rows[1].step_ratio is None
    paths = write_report(report, tmp_path)
    assert "0, 2 failed" in paths[1].read_text()


def test_every_file_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = setting(tmp_path, workers=(1, 2), repeats=2, until=TrainingGoal.parse("accuracy>=0.9"), price=0.1)
    report = BenchSession(wanted, twice_as_slow).run()
    paths = write_report(report, tmp_path)
    assert [path.name for path in paths] == ["bench.json", "bench.md", "phases.png", "curves.png", "scaling.png"]
    assert msgspec.json.decode(paths[0].read_bytes(), type=BenchReport) == report
    page = paths[1].read_text()
    assert "| ddp | 2 | 2 |" in page
    assert "2.00 (2.00–2.00)" in page
    assert all(f"![{path.name}]({path.name})" in page for path in paths[2:])
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths[2:])
    open_console().print(ending(report.rows, report.scaling, report.until, True))
    shown = capsys.readouterr().out
    assert "allreduce" in shown
    assert "every step up to 2 workers pays" in shown.replace("\n", " ")


def test_a_page_says_what_was_emulated(tmp_path: Path) -> None:
    plain, replayed = (
        markdown(BenchSession(setting(tmp_path, repeats=1, **words), twice_as_slow).run(), [])
        for words in ({}, {"lab": "32 hosts, 10mbit", "replayed": True})
    )
    assert plain.splitlines()[0] == "# Benchmark of train.py"
    assert replayed.splitlines()[0] == "# Benchmark of train.py (computing replayed: only communication is real)"
    assert "the lab `32 hosts, 10mbit`" in replayed


def test_nothing_measured_is_nothing_drawn(tmp_path: Path) -> None:
    report = BenchSession(setting(tmp_path, repeats=1), lambda c, o, repeat, *_: failed(repeat)).run()
    assert draw(report, tmp_path) == []


def test_names_are_ids_and_folders_are_new(tmp_path: Path) -> None:
    assert run_name(0, "allreduce, every(1)", 2, 3) == "0-allreduce-every-1-w2-r3"
    check_id(run_name(12, "x" * 200, 64, 100))
    with pytest.raises(UsageError, match="exists already"):
        open_folder(tmp_path)
    assert worker_counts("1, 2,4,2") == (1, 2, 4)
    for wrong in ("", "0", "two", "1,,2", "-1"):
        with pytest.raises(UsageError, match="not a list"):
            worker_counts(wrong)
