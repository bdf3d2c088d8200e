"""`shoal serve --on`: replicas behind one address, one of them killed, the server itself killed; what is refused."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from forked import command, refused, shoal, soon
from test_serve import WAIT, address, doubler, end

sys.path.append(str(Path(__file__).parents[1] / "launch" / "engines"))
from sshd import SSHD, SshMachines


def replicas(ancestor: int, name: str) -> list[int]:
    """Process ids of the replicas of a machine that descend from a process; from 1: all of that name."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
        except OSError:
            continue
        is_named = words[2:4] == [b"shoal", b"replica"] and words[words.index(b"--name") + 1] == name.encode()
        if is_named and belongs(int(entry.name), ancestor):
            found.append(int(entry.name))
    return found


def belongs(pid: int, ancestor: int) -> bool:
    """Whether a process descends from another."""
    while pid > 1 and pid != ancestor:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid == ancestor


@contextmanager
def asking(base: str, clients: int = 3) -> Iterator[list[object]]:
    """Clients that ask all the time; what is not the right answer, whatever it is, stands in the list."""
    wrong, over, count = list[object](), threading.Event(), [0]

    def ask() -> None:
        with httpx.Client(base_url=base, timeout=WAIT) as client:
            while not over.is_set():
                try:
                    found = client.post("/predict", content="[1, 1]")
                    if found.json().get("outputs") != [2.0, 2.0]:
                        wrong.append(found.text)
                except Exception as error:  # noqa: BLE001  (a client sees whatever went wrong)
                    wrong.append(error)
                count[0] += 1

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for each in threads:
        each.start()
    try:
        yield wrong
        before = count[0]
        assert soon(WAIT, lambda: count[0] >= before + 20)
    finally:
        over.set()
        for each in threads:
            each.join(WAIT)


@pytest.mark.usefixtures("tidy")
def test_no_request_fails_when_a_replica_is_killed_and_it_comes_back(tmp_path: Path) -> None:
    (tmp_path / "scale.onnx").write_bytes(doubler(2.0))
    running = command(tmp_path, "serve", "scale.onnx", "--on", "local", "--replicas", "2", "--port", "0")
    base = address(running)

    def said(text: str, times: int = 1) -> bool:
        return soon(WAIT, lambda: running.err.read_text().count(text) >= times)

    assert said("replica machine1 is there")
    assert said("replica machine2 is there")
    with asking(base) as wrong:
        (doomed,) = replicas(running.pid, "machine1")
        os.kill(doomed, signal.SIGKILL)
        assert said("replica machine1 is lost: its connection ended")
        assert said("replica machine1 is there", 2)
        (other,) = replicas(running.pid, "machine2")
        os.kill(other, signal.SIGKILL)  # what has come back answers alone
        assert said("replica machine2 is lost")
    assert wrong == []
    assert soon(WAIT, lambda: len(children(running.pid)) == 1)  # a replica that has just begun or ended has no name
    (server,) = children(running.pid)
    os.kill(server, signal.SIGKILL)  # it is replaced; the replicas stay, and find the one that takes its place
    assert said("another one takes its place")
    assert soon(WAIT, lambda: works(base))
    end(running)
    assert replicas(running.pid, "machine1") == replicas(running.pid, "machine2") == []


def children(pid: int) -> list[int]:
    """Of the supervisor, without replicas: the server."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [each for each in found if b"replica" not in Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")]


def works(base: str) -> bool:
    try:
        return bool(httpx.post(f"{base}/predict", content="[1, 1]", timeout=WAIT).json().get("outputs") == [2.0, 2.0])
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--on", "local"], "--on local has no machine; name some"),
        (["--on", "nowhere"], "--on nowhere: no engine 'nowhere'"),
        (["--on", "mpi"], "--on mpi starts no machines for a server; there are local, ssh, ray"),
        (["--on", "ssh"], "--on ssh names no machine"),
        (["--on", "local:a", "--replicas", "2"], "the list says how many"),
        (["--replicas", "2"], "--replicas 2 is for an engine; say which with --on ray"),
        (["--on", "local:a", "--processes", "2"], "replicas compute; drop --processes"),
    ],
)
def test_what_cannot_be_served_so_is_refused_on_one_line(tmp_path: Path, words: list[str], error: str) -> None:
    (tmp_path / "scale.onnx").write_bytes(doubler(2.0))
    outcome = refused(tmp_path, "serve", "scale.onnx", "--port", "0", *words)
    assert (outcome.code, error in outcome.err, outcome.err.count("\n")) == (2, True, 1), outcome.err


@pytest.mark.usefixtures("tidy")
def test_code_of_this_machine_is_not_sent_to_others(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("class Sum:\n    def predict(self, x): return x.sum()\nmake = Sum\n")
    outcome = shoal(tmp_path, "serve", "code.py:make", "--on", "local:a", "--port", "0")
    assert (outcome.code, "replicas get files" in outcome.err) == (2, True), outcome.err


@pytest.mark.soak("engines")
@pytest.mark.skipif(
    not (shutil.which("ssh") and Path(SSHD).exists() and os.getuid() == 0), reason="needs root, ssh and sshd"
)
def test_replicas_on_machines_that_ssh_reaches(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    machines = SshMachines(tmp_path_factory.mktemp("ssh") / "sshd", "a", "b")
    (tmp_path / "scale.onnx").write_bytes(doubler(2.0))
    try:  # without `tidy`: ssh leaves the folder of its connections
        words = ["scale.onnx", "--on", "ssh:a,b=2", "--port", "0"]
        running = command(tmp_path, "serve", *words, SHOAL_SSH=machines.command)
        base = address(running)
        assert soon(WAIT, lambda: "replica b is there: 2 batches" in running.err.read_text())
        assert soon(WAIT, lambda: "replica a is there: 1 batch at" in running.err.read_text())
        with asking(base) as wrong:
            (doomed,) = replicas(1, "a")
            os.kill(doomed, signal.SIGKILL)
            assert soon(WAIT, lambda: running.err.read_text().count("replica a is there") == 2)
        assert wrong == []
        end(running)
        assert soon(WAIT, lambda: replicas(1, "a") == replicas(1, "b") == [])  # over there, too
    finally:
        machines.close()
