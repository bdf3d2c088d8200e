"""The first file of a run, and where runs lie."""

from pathlib import Path

import msgspec
import pytest

from shoal.core.errors import UsageError
from shoal.core.record import (
    RunInfo,
    machine,
    read_info,
    run_dir,
    runs_root,
    versions,
    worker_file,
    write_attempt,
    write_info,
)


@pytest.fixture
def info() -> RunInfo:
    return RunInfo(
        run="run-a",
        plan="allreduce(ring)",
        workers=2,
        seed=7,
        script="train.py",
        command=["train.py", "--epochs", "5"],
        started=1.5,
        versions=versions(),
        machine=machine(),
    )


def test_info_comes_back(tmp_path: Path, info: RunInfo) -> None:
    write_info(tmp_path / "deep" / "run-a", info)
    assert read_info(tmp_path / "deep" / "run-a") == info


def test_the_slots_of_a_joined_machine_are_written_under_their_old_name(info: RunInfo) -> None:
    text = msgspec.json.encode(msgspec.structs.replace(info, slots=[2, 3]))
    assert msgspec.json.decode(text)["seats"] == [2, 3]
    assert msgspec.json.decode(text, type=RunInfo).slots == [2, 3]


def test_an_id_is_used_once(tmp_path: Path, info: RunInfo) -> None:
    write_info(tmp_path / "run-a", info)
    with pytest.raises(UsageError, match="'run-a' exists already"):
        write_info(tmp_path / "run-a", msgspec.structs.replace(info, seed=8))
    assert read_info(tmp_path / "run-a").seed == 7


def test_a_missing_or_foreign_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run 'nothing'"):
        read_info(tmp_path / "nothing")
    (tmp_path / "run.json").write_text('{"run": 3}')
    with pytest.raises(UsageError, match="is not a run's record"):
        read_info(tmp_path)


def test_the_folder_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_RUNS", raising=False)
    assert runs_root() == Path("runs")
    monkeypatch.setenv("SHOAL_RUNS", "/elsewhere")
    assert runs_root() == Path("/elsewhere")
    assert runs_root("given") == Path("given")


def test_a_runs_folder_is_inside_the_root() -> None:
    assert run_dir(Path("runs"), "run-a") == Path("runs/run-a")
    assert worker_file(Path("runs/run-a"), 3) == Path("runs/run-a/worker-3.jsonl")
    for name in ("..", "a/b", "/etc", ""):
        with pytest.raises(UsageError, match="not an id"):
            run_dir(Path("runs"), name)


def test_what_a_result_depends_on_is_named() -> None:
    assert set(versions()) == {"shoal", "python", "torch"}
    facts = machine()
    assert int(facts["cores"]) >= 1
    assert int(facts["memory_mib"]) > 0
    assert all(facts.values())


def test_nobody_else_reads_what_holds_the_arguments_of_a_script(tmp_path: Path) -> None:
    """They may be tokens; also where a crash left half a file that everybody could read."""
    info = RunInfo(
        run="one", plan="alone", workers=1, seed=0, script="s.py", command=[], started=0.0, versions={}, machine={}
    )
    write_info(tmp_path / "one", info)
    (tmp_path / "one/attempt-2.json.part").touch(0o644)
    write_attempt(tmp_path / "one", msgspec.structs.replace(info, attempt=2))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "one").iterdir()}
    assert modes == {"run.json": 0o600, "attempt-2.json": 0o600}
