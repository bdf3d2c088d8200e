"""N6 to N11: links that lose, delay, break off, stall, repeat, mix up and flip. The result is the same to the bit."""

import random
import threading
from pathlib import Path

import forked
import msgspec
import numpy as np
import pytest
import torch
import zmq
from by_links import _ending, _entry, linked_by_keys
from proxy import Faulty
from scripts import given_up
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.groups.links import LinkedGroup
from shoal.lab.needs import missing
from shoal.testing.world import Result, WorkerWorld, error_of, launch_world, run_world
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair
from shoal.transport.messages import ChunkHeader, FrameRefused, decode, encode, pack, unpack

SEED = 11
STEPS = 12
EVERY = 300_000
"""Bytes between two faults of a link: a step sends 180,000 each way."""
OFTEN = 130_000
"""The same where it goes wrong all the time: some chunk of 61,440 must be able to pass whole, or nothing ever does."""

in_a_lab = pytest.mark.skipif(bool(missing()), reason="; ".join(missing()))


def linked(world: WorkerWorld, kind: str, every: int) -> tuple[LinkedGroup, Faulty]:
    """A group over loopback, under keys, in which everybody's endpoint is behind a proxy."""
    keys = CurveKeyPair.new()
    endpoint = LinkEndpoint("tcp://127.0.0.1:*", keys)
    proxy = Faulty(endpoint.address, kind, SEED + world.group.rank, every)
    told = world.group.gather(f"{proxy.address} {keys.public.decode()}".encode())
    book = {rank: BookEntry(*_entry(text), host="ab"[rank]) for rank, text in enumerate(told)}
    return _ending(LinkedGroup("run", book, world.group.rank, endpoint, world.group.board)), proxy


def train(world: WorkerWorld, kind: str = "", every: int = 1 << 40, stall: float = 0.0) -> Result:
    """Some steps of a model of 45,000 parameters; its parameters in the end, and how many faults there were."""
    group, proxy = linked(world, kind, every)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(100, 300), nn.ReLU(), nn.Linear(300, 50))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = TensorDataset(torch.randn(8 * STEPS, 100), torch.randn(8 * STEPS, 50))
    run = WorkerWorld(group, world.dir).start()
    model, optimizer, loader = run.join(model, optimizer, DataLoader(data, 4))
    for number, (x, y) in enumerate(loader):
        if stall and number == 4 and group.rank == 1:
            proxy.held.set()
            threading.Timer(stall, proxy.held.clear).start()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    faults = torch.tensor([proxy.done, group.mesh.loop.receiver.refused])
    return {"faults": faults} | {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def wanted() -> Result:
    """What an undisturbed training comes to."""
    return run_world(2, train)[0]


def same(results: list[Result], wanted: Result) -> int:
    """All parameters are equal to the bit; the number of faults, at the endpoint and behind it."""
    for result in results:
        for name, tensor in wanted.items():
            assert name == "faults" or torch.equal(result[name], tensor), name
    return int(sum(result["faults"][0] for result in results))


def test_n8_connections_that_break_off_in_a_tensor(wanted: Result) -> None:
    assert same(run_world(2, lambda world: train(world, "cut", EVERY), seconds=100), wanted) >= 4


def test_n9_a_link_that_stalls_is_waited_for(wanted: Result) -> None:
    same(run_world(2, lambda world: train(world, stall=2.0), seconds=100), wanted)


@pytest.mark.parametrize("kind", ["twice", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("swap", "drop"))])
def test_n10_bytes_that_come_twice_in_another_order_or_not_at_all(wanted: Result, kind: str) -> None:
    assert same(run_world(2, lambda world: train(world, kind, EVERY), seconds=100), wanted) >= 4


class Parrot:
    """A way to a peer on which everything is said again: later, in any order, as of another generation and run."""

    def __init__(self, way: "zmq.Socket[bytes]") -> None:
        self.way, self.again = way, 0
        self._chance, self._part, self._said = random.Random(SEED), list[bytes](), list[list[bytes]]()

    def __getattr__(self, name: str) -> object:
        return getattr(self.way, name)

    def send(self, data: bytes | zmq.Frame, flags: int = 0, copy: bool = True) -> None:
        self._part.append(bytes(data))
        if flags & zmq.SNDMORE:
            return
        whole, self._part = self._part, []
        self._said = [*self._said[-100:], whole]
        message = decode(whole[0])
        others = [{"run": "other"}, {"generation": message.generation + 1}, {"sender": 1 - message.sender}]
        strange = [[encode(msgspec.structs.replace(message, **other)), *whole[1:]] for other in others]
        for frames in (whole, whole, *self._chance.choices(self._said, k=7), *strange):
            self.way.send_multipart(frames)
        self.again += 11


@pytest.mark.parametrize("times", [2_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_n10_messages_that_are_said_again_count_once(times: int) -> None:
    """Under the right key: no seal sees anything wrong in them."""

    def body(world: WorkerWorld) -> Result:
        group = linked_by_keys(world.group)
        loop, parrot, count = group.mesh.loop, Parrot(group.mesh.link(1 - group.rank).chunk_socket), 0
        if group.rank == 1:
            loop.call(lambda: setattr(loop.peers[0], "chunk_socket", parrot))
        while not all(group.gather(b"enough" if group.rank == 0 or parrot.again >= times else b"")):
            count += 1
            told = group.gather(f"{group.rank} {count}".encode())
            assert told == [f"{rank} {count}".encode() for rank in range(2)]
        return {
            "found": torch.tensor([parrot.again, loop.receiver.repeated, loop.receiver.stale, loop.receiver.refused])
        }

    (_, repeated, stale, refused), (again, *_) = (r["found"].tolist() for r in run_world(2, body, seconds=500))
    assert again >= times
    assert min(repeated, stale, refused) > again // 22, (again, repeated, stale, refused)


@pytest.mark.parametrize(
    "frames", [10_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
def test_n11_damaged_frames_are_refused_without_a_seal_too(frames: int) -> None:
    chance, payload = random.Random(SEED), pack(np.arange(60, dtype=np.float32), "float32")
    chunk = ChunkHeader("run", 1, 2, 3, 4, 0, 0, "sum", 0, 0, 240, 0, payload.dtype, payload.shape, payload.crc)
    for _ in range(frames):
        data = bytearray(payload.frame.bytes)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(240)] ^= chance.randrange(1, 256)
        if data != payload.frame.bytes:
            with pytest.raises(FrameRefused):
                unpack(chunk, zmq.Frame(data))


HEADS = "more was refused than bits can be flipped in ZMTP's heads of frames"
"""The seal covers what is in a frame, not the bits that say whether another follows: flipped, they join two messages or
leave a frame out. The number of parts and the checksum tell; what was refused comes again."""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_n11_a_million_frames_over_links_that_flip() -> None:
    """Each gathering is a head and a frame each way: every one of them says the right thing."""

    def body(world: WorkerWorld) -> Result:
        group, proxy = linked(world, "flip", EVERY // 3)
        for count in range(250_000):
            told = group.gather(f"{group.rank} {count}".encode())
            assert told == [f"{rank} {count}".encode() for rank in range(2)]
        return {"faults": torch.tensor([proxy.done, group.mesh.loop.receiver.refused])}

    for done, refused in (result["faults"].tolist() for result in run_world(2, body, seconds=850)):
        assert done > 100
        assert refused <= done / 20, HEADS


def test_n11_flipped_bits_are_never_taken_for_numbers(wanted: Result) -> None:
    results = run_world(2, lambda world: train(world, "flip", EVERY), seconds=100)
    assert same(results, wanted) >= 4
    assert all(result["faults"][1] <= 1 for result in results), HEADS


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["cut", "twice", "swap", "drop", "flip"])
def test_n8_n10_n11_again_and_again(wanted: Result, kind: str) -> None:
    for _ in range(5):
        assert same(run_world(2, lambda world: train(world, kind, OFTEN), seconds=300), wanted) >= 10


def test_n9_a_link_that_stays_silent_is_named() -> None:
    """It is open, and nothing comes: only a deadline sees that."""

    def body(world: WorkerWorld) -> None:
        group, proxy = linked(world, "", 1 << 40)
        group.mesh.silence = 1.5
        group.gather(b"")
        if group.rank == 1:
            proxy.held.set()  # what worker 0 says does not arrive
        group.gather(b"")
        group.gather(b"")

    results, statuses = launch_world(2, body, seconds=100)
    assert statuses[1] == 1
    told = error_of(results[1])
    assert "worker 1 stops: worker 0 (host a)" in told
    assert "has been silent for" in told


def alike(folder: Path, lab: str) -> None:
    """What is trained in a lab is what is trained on one host, to the bit; and nobody was missed."""
    here = forked.train(folder, forked.TRAIN, "--workers", "2", "--json")
    there = forked.train(folder, forked.TRAIN, "--lab", lab, "--json", "--name", "one")
    assert there.code == 0, there.err
    assert there.checksum == here.checksum
    assert there.json["steps"] == here.json["steps"]
    assert there.json["losses"] == 0
    assert given_up(folder) == []


@in_a_lab
@pytest.mark.parametrize("loss", ["3%", *(pytest.param(share, marks=pytest.mark.soak) for share in ("1%", "5%"))])
def test_n6_loss_costs_time_and_nothing_else(tmp_path: Path, loss: str) -> None:
    alike(tmp_path, f"2 hosts, 20mbit, 1ms, {loss}, seed 6")


@in_a_lab
@pytest.mark.soak
def test_n7_latency_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """200 ms from host to host, and 100 more or less."""
    alike(tmp_path, "2 hosts, 100ms, 50ms jitter, seed 7")


EVENTS = """
hosts = 2
seed = 8
rate = "50mbit"
delay = "1ms"
[[event]]
at = "step 2"
cut = [1]
for = "1s"
[[event]]
at = "step 4"
host = 0
stall = true
for = "1s"
[[event]]
at = "step 6"
host = 1
duplicate = 0.2
[[event]]
at = "step 8"
host = 0
flip = 0.02
"""


@in_a_lab
def test_n8_to_n11_in_one_run(tmp_path: Path) -> None:
    """A link is cut, another stalls, frames come twice and damaged: `shoal run` says nothing and trains."""
    (tmp_path / "lab.toml").write_text(EVENTS)
    script = forked.TRAIN.replace("run.epochs(2)", "run.epochs(4)")
    here = forked.train(tmp_path, script, "--workers", "2")
    there = forked.train(tmp_path, script, "--lab", "lab.toml", "--name", "one")
    assert there.code == 0, there.err
    assert there.checksum == here.checksum
    shown = forked.shoal(tmp_path, "show", "one").out
    assert all(word in shown for word in ("cut host 1", "stall host 0", "duplicate", "flip"))
