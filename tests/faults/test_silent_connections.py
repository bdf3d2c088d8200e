"""A10 strangers who open connections and say nothing: 3 × 900 at the coordinator, and at the endpoints of workers.

Every process may have 2,048 descriptors, so that 2,700 connections would take them all.
"""

import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import zmq
from by_links import linked_by_keys
from forked import Forked, soon

from shoal.core.clock import Deadline
from shoal.launch.join_request import ask, question, versions
from shoal.membership import coordinator_socket
from shoal.membership.agent import MembershipAgent
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.grants import JoinPolicy
from shoal.membership.handle import CoordinatorHandle
from shoal.membership.invitation import RunBrief
from shoal.membership.server import CoordinatorSetup
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.transport import endpoint as links_door
from shoal.transport.keys import CurveKeyPair
from shoal.transport.pending_connections import MOST_PER_ADDRESS

WAIT = 60.0
DESCRIPTORS, STRANGERS, CONNECTIONS = 2048, 3, 900
LEFT = 100
"""Descriptors a process needs for itself, at the most."""


@pytest.fixture(autouse=True)
def long_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is closed only because it took long to open all those connections."""
    monkeypatch.setitem(coordinator_socket._OPTIONS, zmq.HANDSHAKE_IVL, int(WAIT * 1000))
    monkeypatch.setattr(links_door, "HANDSHAKE_MS", int(WAIT * 1000))


def limit_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def call_and_say_nothing(folder: Path, number: int, addresses: Callable[[], list[str]]) -> None:
    """In a process of its own: as many connections as were asked for to each, held until the test is over."""
    for address in addresses():
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        held = [socket.create_connection((host, int(port)), WAIT) for _ in range(CONNECTIONS)]
        (folder / f"called-{number}-{port}").touch()
        assert soon(WAIT, (folder / "seen").exists)
        for caller in held:
            caller.close()


@contextlib.contextmanager
def strangers(folder: Path, addresses: Callable[[], list[str]]) -> Iterator[None]:
    calling = [Forked(folder, lambda n=n: call_and_say_nothing(folder, n, addresses)) for n in range(STRANGERS)]
    try:
        yield
    finally:
        (folder / "seen").touch()
    for process in calling:
        outcome = process.wait(WAIT)
        assert outcome.code == 0, outcome.err


def all_called(folder: Path) -> bool:
    return len(list(folder.glob("called-*"))) >= STRANGERS


def test_a10_silent_connections_at_the_coordinator(tmp_path: Path) -> None:
    """A member stays, and a machine that has a key is let in while they are held."""
    endpoint, member, joiner = CurveKeyPair.new(), CurveKeyPair.new(), CurveKeyPair.new()
    brief = RunBrief(run="run-a", name="s.py", script=b"", arguments=(), plan="allreduce", seed=0, checkpoint="auto")
    setup = CoordinatorSetup(
        "run-a",
        "tcp://127.0.0.1:*",
        tmp_path / "log",
        MembershipRules(silence=WAIT),
        ServerCredentials(endpoint, {member.public: 1, joiner.public: 1}),
        welcome=JoinPolicy(brief, versions(), {joiner.public: 1}, first=1),
    )
    handle = CoordinatorHandle(setup, limit_descriptors)
    handle.start(Deadline.after(WAIT))
    agent = MembershipAgent("m0", handle.address, "run-a", key=ClientCredentials(member, endpoint.public))
    try:
        agent.start()
        agent.wait_settled(Deadline.after(WAIT))
        with strangers(tmp_path, lambda: [handle.address]):
            assert soon(WAIT, lambda: all_called(tmp_path))
            assert ask(handle.address, ClientCredentials(joiner, endpoint.public), question(1), WAIT).members == (
                "w1.1",
            )
            assert soon(WAIT, lambda: descriptors(handle.pid) < MOST_PER_ADDRESS + LEFT)
        assert handle.alive()
        agent.filled()
        assert agent.enter(Deadline.after(WAIT)) == 1, "the member cannot go on"
    finally:
        agent.close()
        handle.stop(Deadline.after(WAIT))


def test_a10_silent_connections_at_the_doors_of_workers(tmp_path: Path) -> None:
    """Two workers exchange and open files while they are held."""

    def endpoints() -> list[str]:
        assert soon(WAIT, lambda: len(list(tmp_path.glob("endpoint-*"))) == 1)
        return [path.read_text() for path in tmp_path.glob("endpoint-*")]

    def body(world: WorkerWorld) -> Result:
        limit_descriptors()
        group = linked_by_keys(world.group)
        if group.rank == 0:
            part = tmp_path / "part"
            part.write_text(group.mesh.loop.book[0].address)
            part.rename(tmp_path / "endpoint-0")
        most = count = 0
        while not group.gather(b"y" if all_called(tmp_path) else b"")[0]:
            with open(os.devnull) as file:  # what the script does
                most = max(most, file.fileno())
            count += 1
        assert soon(WAIT, lambda: descriptors(os.getpid()) < MOST_PER_ADDRESS + LEFT)
        return {"found": torch.tensor([most, count])}

    with strangers(tmp_path, endpoints):
        results = run_world(2, body, seconds=WAIT)
    for most, count in (result["found"].tolist() for result in results):
        assert most < DESCRIPTORS - LEFT
        assert count > 0
