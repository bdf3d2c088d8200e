"""`shoal doctor`: one line for each thing, and a way out for what is missing."""

from pathlib import Path

import pytest
from forked import shoal

from shoal.cli.doctor import file_system, folder, look_here
from shoal.launch.engines.findings import DoctorFinding


def test_a_line_for_each_thing(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "doctor", SHOAL_ADDRESS="127.0.0.1")
    lines = outcome.out.splitlines()
    for what in ("python", "torch", "interfaces", "ports", "folder of runs", "open files", "shared memory"):
        assert sum(line[6:].startswith(f"{what}: ") for line in lines) == 1, outcome.out
    assert outcome.code == 1, "an address that only this machine reaches is a lack"
    assert any(line.startswith("LACK  address: 127.0.0.1; only this machine") for line in lines)
    assert not (tmp_path / "runs").exists(), "looking changes nothing"


def test_what_is_missing_comes_with_a_way_out(tmp_path: Path) -> None:
    assert str(DoctorFinding("x", "none", False, "get one")) == "LACK  x: none; get one"
    assert str(DoctorFinding("x", "one", True, "get one")) == "ok    x: one"
    assert folder(tmp_path / "not" / "there").good
    assert file_system(Path("/proc")) == "proc"
    assert all(isinstance(finding, DoctorFinding) for finding in look_here(tmp_path))


def test_an_engine_without_its_commands_lacks_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = shoal(tmp_path, "doctor", "--on", "slurm", PATH="/nonexistent", SHOAL_ADDRESS="127.0.0.1")
    assert outcome.code == 1
    assert "LACK  sbatch: not found" in outcome.out
    assert "LACK  slurm: its commands are missing; log in to a node of the cluster" in outcome.out
    outcome = shoal(tmp_path, "doctor", "--on", "k8s:image", PATH="/nonexistent", SHOAL_ADDRESS="127.0.0.1")
    assert "LACK  kubectl: not found; install it" in outcome.out
    assert shoal(tmp_path, "doctor", "--on", "slrum").code == 2
