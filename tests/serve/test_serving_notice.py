"""What a server that follows a run tells the page, and what a killed one leaves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.private import private_folder
from shoal.core.process import HostProcess
from shoal.serve.serving_notice import ServedCheckpoint, ServingNotice, remove_notice, servers_of, write_notice


@pytest.fixture(autouse=True)
def private(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))


def notice(run: Path, pid: int | None = None, address: str = "http://127.0.0.1:1", requests: int = 0) -> ServingNotice:
    versions = (ServedCheckpoint(5, "answers", requests),)
    process = HostProcess.of(os.getpid() if pid is None else pid)
    return ServingNotice(dir=str(run), model="digits", address=address, process=process, versions=versions)


def test_a_server_is_found_by_its_run_and_gone_when_it_ends(tmp_path: Path) -> None:
    run = tmp_path / "one"
    assert servers_of(run) == []
    write_notice(notice(run, requests=1))
    write_notice(notice(run, requests=2))  # it takes the place of the first
    assert [each.versions[0].requests for each in servers_of(run)] == [2]
    assert servers_of(tmp_path / "two") == []
    remove_notice(notice(run))
    assert (servers_of(run), private_folder().exists()) == ([], False)


def test_processes_of_one_server_are_one(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        write_notice(notice(tmp_path))
        write_notice(notice(tmp_path, other.pid))
        (private_folder() / "serving-1-digits.json").write_bytes(b"{")  # damaged, or of another version
        found = servers_of(tmp_path)
        other.kill()
    assert [each.address for each in found] == ["http://127.0.0.1:1"]


def test_what_a_killed_server_left_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        left = notice(tmp_path, server.pid)
        write_notice(left)
        server.kill()
    assert servers_of(tmp_path) == []
    assert not left.path.exists()
