"""A pool's server and its agents, with commands that only say what they were told."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineMachine, EngineOptions, JoinOrder, LaunchEngine
from shoal.launch.engines.pool import LeasedProcess, PoolEngine
from shoal.launch.engines.relay import RelayOutput, RelayProcess, open_relay
from shoal.launch.pool.agent import AgentOrder
from shoal.launch.pool.server import PoolMachine, PoolServer

AGENT = """
import os, sys
from shoal.launch.pool.agent import PoolAgent

def run(words):
    secret = sys.stdin.readline()
    print("ran", words[1], os.getppid(), "secret" in secret, flush=True)
    if words[1] == "slow:1":
        sys.stdin.read()
    return 7

PoolAgent(run).serve()
"""


class TwoMachines(LaunchEngine):
    """Agents of this machine that have imported nothing."""

    def machines(self) -> list[EngineMachine]:
        return [EngineMachine("a"), EngineMachine("b")]

    def start(self, machine: EngineMachine, order: JoinOrder) -> RelayProcess:
        assert order.words(machine, "-", "") == ["pool", "serve"]
        return open_relay([sys.executable, "-c", AGENT])


def head(words: list[str]) -> int:
    """In a process the pool has forked: lease a machine, pass its output on, end as it does."""
    machine = EngineMachine(words[-1])
    output = RelayOutput(LeasedProcess("default", machine, JoinOrder("here:1", "a secret\n")))
    while not output.ended:
        for _, line in output.read(0.05):
            sys.stdout.write(f"{os.environ['MARK']} {line}\n")
    return int(output.process.returncode)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "object":
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = PoolServer(TwoMachines(EngineOptions()), "default", head)
    found.open()
    yield found
    found.close()
    assert not list(tmp_path.rglob("*.sock"))


def until(server: PoolServer, what: Callable[[], object]) -> None:
    limit = time.monotonic() + 60.0
    while not what():
        assert time.monotonic() < limit
        server.serve()


def submit(server: PoolServer, folder: Path, machine: str, mark: str) -> tuple[int, str]:
    """`shoal run --on pool`, from another process; its exit code and output."""
    out = folder / f"out-{mark}"
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
            os.environ["MARK"] = mark
            code = PoolEngine(EngineOptions(command=(machine,))).submit()
        finally:
            os._exit(code)
    ended: list[int] = []

    def done() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        ended.extend([os.waitstatus_to_exitcode(status)] if found else [])
        return bool(found)

    until(server, done)
    return ended[0], out.read_text()


def test_a_machine_is_leased_used_again_and_given_back(server: PoolServer, tmp_path: Path) -> None:
    until(server, lambda: server.ready == 2)
    found = [submit(server, tmp_path, "a", mark) for mark in ("one", "two")]
    assert [code for code, _ in found] == [7, 7], "the exit code is that of the leased process"
    words = [text.split() for _, text in found]
    assert [line[:3] for line in words] == [["one", "ran", "here:1"], ["two", "ran", "here:1"]]
    assert words[0][3] == words[1][3], "the same agent has run both"
    assert words[0][4] == "True", "and got the secret on standard input"


class OpenInput(TwoMachines):
    """What is written to an agent may be read on its way, as srun's input may."""

    private_input = False


def test_where_input_is_not_private_the_secret_is_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    server = PoolServer(OpenInput(EngineOptions(runs=tmp_path / "runs")), "default", head)
    orders: list[AgentOrder] = []
    send = server._order

    def note(machine: PoolMachine, order: AgentOrder) -> None:
        orders.append(order)
        if order.key:
            assert Path(order.key).stat().st_mode & 0o777 == 0o600
        send(machine, order)

    monkeypatch.setattr(server, "_order", note)
    server.open()
    until(server, lambda: server.ready == 2)
    code, text = submit(server, tmp_path, "a", "one")
    assert (code, text.split()[4]) == (7, "True"), "the leased process got its secret"
    assert orders[0].secret == ""
    assert not Path(orders[0].key).exists(), "it is read once"
    server.close()
    assert not list((tmp_path / "runs").iterdir())


def test_a_machine_that_is_not_there_is_no_lease(server: PoolServer, tmp_path: Path) -> None:
    until(server, lambda: server.ready == 2)
    assert submit(server, tmp_path, "nowhere", "x")[0] == 75


def test_a_second_pool_of_the_same_name_is_refused(server: PoolServer) -> None:
    second = PoolServer(TwoMachines(EngineOptions()), "default", head)
    with pytest.raises(UsageError, match="a pool 'default' is there already; give another --name"):
        second.open()
    second.close()
    until(server, lambda: server.ready == 2)
    assert server._file.exists(), "the first one can still be reached"


def test_a_lost_agent_is_said_and_its_machine_is_gone(server: PoolServer, capsys: pytest.CaptureFixture[str]) -> None:
    until(server, lambda: server.ready == 2)
    server._machines["b"].output.process.send_signal(9)
    until(server, lambda: "b" not in server._machines)
    assert "the pool has lost b" in capsys.readouterr().err
