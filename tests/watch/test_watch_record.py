"""Opening and finding runs, whatever state they are in."""

from pathlib import Path

import msgspec
import pytest
from fake_runs import ended, logged, make_run, started, step, tear

from shoal.core.errors import UsageError
from shoal.core.merging import merged
from shoal.core.record import worker_file, write_attempt
from shoal.watch.record import RunRecord, list_runs, resolve
from shoal.watch.worker import read_worker


def test_events_come_back_as_they_were_emitted(tmp_path: Path) -> None:
    events = [started(), step(1), logged(1, loss=0.5), ended()]
    record = make_run(tmp_path, events)
    assert list(record.events(0)) == events


def test_torn_empty_and_missing_files_are_read(tmp_path: Path) -> None:
    record = make_run(tmp_path, [started(), step(1)], [], size=3)
    tear(worker_file(record.dir, 0))
    assert record.ranks == [0, 1, 2]
    assert [len(list(record.events(rank))) for rank in record.ranks] == [2, 0, 0]


def test_a_worker_beyond_the_plan_is_listed(tmp_path: Path) -> None:
    record = make_run(tmp_path, [started()], [started(1)], size=1)
    (record.dir / "worker-x.jsonl").touch()
    assert record.ranks == [0, 1]


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    for name, began in [("b", 2.0), ("a", 3.0), ("c", 1.0)]:
        make_run(tmp_path, run=name, began=began)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_bytes(b"\xff")
    assert [path.name for path in list_runs(tmp_path)] == ["a", "b", "c"]
    assert resolve(tmp_path) == tmp_path / "a"
    assert resolve(tmp_path, "c") == tmp_path / "c"


def test_an_unknown_run_is_refused_with_the_nearest(tmp_path: Path) -> None:
    make_run(tmp_path, run="digits")
    make_run(tmp_path, run="words")
    with pytest.raises(UsageError, match=r"no run 'digit' .* the nearest is 'digits'"):
        resolve(tmp_path, "digit")
    with pytest.raises(UsageError, match="not an id"):
        resolve(tmp_path, "..words")


def test_a_path_is_a_run_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "far", run="digits")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "far" / "digits"
    for name in (str(folder), f"{folder}/", "far/digits", "./far/digits/", "far/../far/digits"):
        assert resolve(tmp_path / "runs", name) == folder
    monkeypatch.chdir(folder)
    assert resolve(tmp_path / "runs", ".") == folder
    assert resolve(tmp_path / "runs", "../digits") == folder


def test_a_path_without_a_run_is_refused_with_the_way_out(tmp_path: Path) -> None:
    make_run(tmp_path, run="digits")
    for name, why in [("", "it holds no run.json"), ("digits/worker-0.jsonl", "no folder"), ("none", "no folder")]:
        path = f"{tmp_path}/{name}"
        with pytest.raises(UsageError, match=rf"'{path}' is .*{why}; give the folder that shoal run made"):
            resolve(tmp_path, path)


def test_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        assert list_runs(root) == []
        with pytest.raises(UsageError, match="no runs in"):
            resolve(root)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run"):
        RunRecord.open(tmp_path)


def test_of_merged_steps_that_were_made_again_in_part_the_rest_counts(tmp_path: Path) -> None:
    (block,) = merged([step(number) for number in range(16)], 16)
    again = msgspec.structs.replace(started(), attempt=2)
    record = make_run(tmp_path, [started(), block, again, *(step(number) for number in range(12, 16))])
    write_attempt(record.dir, msgspec.structs.replace(record.info, attempt=2, step=12))
    worker = read_worker(record, 0)
    assert (worker.steps, worker.samples, worker.seconds) == (16, 160, pytest.approx(16.0))
