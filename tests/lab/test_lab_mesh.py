"""Sums over links on bad networks: cuts heal, noise changes nothing, slow is not dead, frozen is named."""

import signal
import time
from contextlib import ExitStack

import pytest
import torch

from shoal.core.errors import PeerLost
from shoal.core.units import BitRate, TimeSpan
from shoal.lab.inside import HostChild, Say, inside
from shoal.lab.lab import NetworkLab
from shoal.lab.link import LabLink
from shoal.sync.engine.algorithms.base import DtypeArithmetic
from shoal.sync.engine.algorithms.ring import RingAllReduce
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair
from shoal.transport.mesh import LinkMesh

SIZE = 3
WAIT = 60.0


def worker(say: Say, addresses: list[str], keys: list[CurveKeyPair], rank: int, numel: int, silence: float) -> None:
    """Sums for ever; says every sum, and what ends it."""
    torch.set_num_threads(1)
    book = {r: BookEntry(f"tcp://{addresses[r]}:7700", keys[r].public, str(r)) for r in range(SIZE)}
    mesh = LinkMesh("run", book, rank, LinkEndpoint(book[rank].address, keys[rank]), silence=silence)
    mesh.wait_for_peers(WAIT)
    tensor = torch.arange(numel, dtype=torch.float32) % 5 + rank
    wanted = SIZE * (torch.arange(numel, dtype=torch.float32) % 5) + SIZE * (SIZE - 1) / 2
    arithmetic = DtypeArithmetic(tensor.dtype)
    while True:
        result = torch.zeros_like(tensor)
        task = RingAllReduce(arithmetic.array(tensor), arithmetic.array(result), arithmetic)
        mesh.submit(task)
        say("began")
        try:
            mesh.wait(task, WAIT)
        except PeerLost as error:
            mesh.close()
            say(str(error))
            return
        say("right" if torch.equal(result, wanted) else "wrong")


def start(stack: ExitStack, lab: NetworkLab, numel: int, silence: float = 20.0) -> list[HostChild]:
    keys = [CurveKeyPair.new() for _ in range(SIZE)]
    addresses = [host.address for host in lab.hosts]
    return [
        stack.enter_context(inside(lab, rank, worker, addresses, keys, rank, numel, silence)) for rank in range(SIZE)
    ]


def sums(children: list[HostChild], count: int) -> None:
    for child in children:
        assert [child.hear(WAIT) for _ in range(2 * count)] == ["began", "right"] * count


@pytest.mark.parametrize("how", ["cut", "stall", "noise", "loss"])
def test_a_bad_moment_is_got_over(lab: NetworkLab, how: str) -> None:
    for host in range(SIZE):
        lab.set_link(host, LabLink(rate=BitRate(20 * 10**6), delay=TimeSpan.of(0.002)))
    with ExitStack() as stack:
        children = start(stack, lab, 200_000)  # about half a second each
        sums(children, 1)
        assert [child.hear(WAIT) for child in children] == ["began"] * SIZE
        if how == "cut":
            lab.cut(1)
            time.sleep(1.0)
            lab.restore(1)
        elif how == "stall":
            lab.stall(1, TimeSpan.of(1.0))
        elif how == "noise":
            lab.noise(1, duplicate=0.05, flip=0.01)
        else:
            lab.set_link(1, LabLink(rate=BitRate(20 * 10**6), delay=TimeSpan.of(0.002), loss=0.03))
        assert [child.hear(WAIT) for child in children] == ["right"] * SIZE
        sums(children, 1)


@pytest.mark.soak
def test_slow_is_not_dead(lab: NetworkLab) -> None:
    """A chunk takes more than a second, and those behind it wait for it: nobody complains."""
    lab.set_link(1, LabLink(rate=BitRate(250_000)))
    with ExitStack() as stack:
        sums(start(stack, lab, 30_000, silence=3.0), 1)


def test_a_frozen_host_is_named_by_all(lab: NetworkLab) -> None:
    with ExitStack() as stack:
        children = start(stack, lab, 100_000, silence=3.0)
        sums(children, 2)
        lab.signal(1, signal.SIGSTOP)
        for rank in (0, 2):
            said = "right"
            while said in ("began", "right"):
                said = children[rank].hear(WAIT)
            assert said.startswith(f"worker {rank} stops: worker 1 (host 1)"), said
            assert "silent" in said or "is lost, says" in said


def test_a_killed_host_is_named_by_all(lab: NetworkLab) -> None:
    with ExitStack() as stack:
        children = start(stack, lab, 100_000)
        sums(children, 2)
        lab.signal(1, signal.SIGKILL)
        for rank in (0, 2):
            said = "right"
            while said in ("began", "right"):
                said = children[rank].hear(WAIT)
            assert said.startswith(f"worker {rank} stops: worker 1 (host 1)"), said
            assert "is gone" in said or "is lost, says" in said
