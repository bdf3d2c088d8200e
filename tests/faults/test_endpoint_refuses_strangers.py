"""A3 many joins with one credential, A4 strangers, A5 no keys, A9 too much at once, A14 guesses and replays.

At the endpoints of real processes: a coordinator under keys with members that train, and workers joined by links.
"""

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import zmq
from by_links import linked_by_keys
from forked import Forked, soon
from proxy import Proxy
from strangers import Stranger, call, disturb, heard, refusal, resident, stranger

from shoal.core.clock import Deadline
from shoal.core.errors import ShoalError, UsageError
from shoal.membership.agent import MembershipAgent
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.membership.envelope import LARGEST_REPORT, MessageEnvelope
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.handle import CoordinatorHandle
from shoal.membership.protocol import Heartbeat, JoinRequest, LeaveRequest, ProcessExited
from shoal.membership.server import CoordinatorSetup
from shoal.membership.wal import read
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.transport.keys import CurveKeyPair
from shoal.transport.messages import LinkClosed, encode

RUN, WAIT = "run-a", 60.0


class Place:
    """A coordinator at a port of this host, with one member that is let in."""

    def __init__(self, folder: Path) -> None:
        self.endpoint, self.pair = CurveKeyPair.new(), CurveKeyPair.new()
        lock = ServerCredentials(self.endpoint, {self.pair.public: 1})
        self.handle = CoordinatorHandle(
            CoordinatorSetup(RUN, "tcp://127.0.0.1:*", folder / "log", MembershipRules(silence=WAIT), lock)
        )
        self.handle.start(Deadline.after(WAIT))
        self.key = ClientCredentials(self.pair, self.endpoint.public)

    def log(self) -> object:
        return read(self.handle.setup.log)


@contextlib.contextmanager
def trained(folder: Path) -> Iterator[tuple[Place, MembershipAgent]]:
    """Whatever happens inside: the member stays, the log stays as it is, and the coordinator does not grow."""
    place = Place(folder)
    member = MembershipAgent("m1", place.handle.address, RUN, key=place.key)
    member.start()
    try:
        member.wait_settled(Deadline.after(WAIT))
        before, size, pid = place.log(), resident(place.handle.pid), place.handle.pid
        yield place, member
        assert place.handle.alive()
        assert place.handle.pid == pid
        assert place.log() == before
        assert resident(pid) - size < 32 << 20
        assert not member.disturbed
        member.filled()
        assert member.enter(Deadline.after(WAIT)) == 1, "the member cannot go on"
    finally:
        member.close()
        place.handle.stop(Deadline.after(WAIT))


def test_a3_a_hundred_joins_with_one_credential(tmp_path: Path) -> None:
    with trained(tmp_path) as (place, member), stranger(place.handle.address, place.key) as sybil:
        for number in range(100):
            sybil.say(*MessageEnvelope(RUN).seal(JoinRequest(member=f"s{number}")))
            assert refusal(sybil.answer()) == "1 of 1 members live under this key already"
        assert member.view.members == ("m1",)


def closed(caller: socket.socket) -> bool:
    """Whether the other side ends this connection, though nothing more is said on it."""
    with contextlib.suppress(ConnectionError):
        while caller.recv(1 << 16):
            pass
    caller.close()
    return True


@pytest.mark.parametrize("frames", [4_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_a4_strangers_at_the_coordinator(tmp_path: Path, frames: int) -> None:
    """Noise, HTTP, TLS, no key, a foreign key, the wrong server's key, and a member's key with other members' words."""
    foreign = CurveKeyPair.new()
    chance = random.Random(4)
    with trained(tmp_path) as (place, _):
        address, server = place.handle.address, place.endpoint.public
        silent = [call(address) for _ in range(20)]
        disturb(address, 5)
        for key in (None, ClientCredentials(foreign, server), ClientCredentials(foreign, foreign.public)):
            with stranger(address, key) as other, contextlib.suppress(zmq.Again):  # it is shown out before it speaks
                other.socket.sndtimeo = 1000
                other.say(*MessageEnvelope(RUN).seal(ProcessExited(member="m1", reason="lie")))
                assert not other.answer(0.3)
        with stranger(address, place.key) as other:
            head, body = MessageEnvelope(RUN).seal(Heartbeat(member="m9", generation=1, promised=99, applied=7))
            for number in range(frames // 4):
                noise, mutated = chance.randbytes(chance.randrange(200)), bytearray(body)
                mutated[chance.randrange(5)] ^= 1 << chance.randrange(8)
                for frames in ((noise,), (head, noise), (head, bytes(mutated)), (head, body, noise)):
                    other.say(*frames)
                if number % 100 == 99:
                    heard(other, RUN)
            for report in (ProcessExited(member="m9", reason="lie"), LeaveRequest(member="m9")):
                other.say(*MessageEnvelope(RUN).seal(report))
            heard(other, RUN)
        assert all(closed(caller) for caller in silent), "whoever shows no key is kept"


def test_a5_no_door_to_a_network_without_keys(tmp_path: Path) -> None:
    for address in ("tcp://127.0.0.1:0", "tcp://0.0.0.0:7000"):
        with pytest.raises(ShoalError, match="there is no key; make one with shoal keys new"):
            CoordinatorHandle(CoordinatorSetup(RUN, address, tmp_path / "log")).start(Deadline.after(WAIT))
    lost = MembershipAgent("m1", "tcp://127.0.0.1:1", RUN)
    lost.start()
    with pytest.raises(UsageError, match="there is no key; give the key file"):
        lost.wait_settled(Deadline.after(WAIT))


def test_a9_too_much_at_once(tmp_path: Path) -> None:
    """Frames above the limit end the connection, of a member too; so do a length of 2^63 and a million keys."""
    with trained(tmp_path) as (place, _):
        for size in (LARGEST_REPORT + 1, 32 << 20):
            with stranger(place.handle.address, place.key) as other:
                other.say(MessageEnvelope(RUN).seal(JoinRequest(member="m9"))[0], bytes(size))
                assert not other.answer(0.3)
        disturb(place.handle.address, 3)
        with stranger(place.handle.address, place.key) as other:
            other.say(*[b"k"] * 3000)
            keys = b"\xdf" + (10**6).to_bytes(4, "big")  # as a map announces itself
            for body in (keys, keys + b"\xa1k\xc0" * 1300, b"\xdd\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
                other.say(MessageEnvelope(RUN).seal(JoinRequest(member="m9"))[0], body)
            heard(other, RUN)


@pytest.mark.parametrize("guesses", [100, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_a14_guessed_keys(tmp_path: Path, guesses: int) -> None:
    """There is no password: each guess is one of 2^255, and costs its sender a handshake."""
    with trained(tmp_path) as (place, _):
        context = zmq.Context()
        sockets: list[zmq.Socket[bytes]] = []
        for number in range(guesses):
            other = context.socket(zmq.DEALER)
            other.curve_serverkey = place.endpoint.public
            other.curve_publickey, other.curve_secretkey = zmq.curve_keypair()
            other.connect(place.handle.address)
            other.send_multipart(MessageEnvelope(RUN).seal(JoinRequest(member=f"g{number}")))
            sockets.append(other)
            if len(sockets) == 100:
                poller = zmq.Poller()
                for each in sockets:
                    poller.register(each, zmq.POLLIN)
                assert not poller.poll(1000), "somebody was answered"
                for each in sockets:
                    each.close(linger=0)
                sockets.clear()
        context.destroy(linger=0)


class Recorder(Proxy):
    """Keeps what a member says to the coordinator, byte by byte."""

    def __init__(self, target: str) -> None:
        self.said = bytearray()
        super().__init__(target)

    def alter(self, data: bytes) -> bytes:
        self.said += data
        return data


def test_a14_a_recorded_conversation_is_worth_nothing(tmp_path: Path) -> None:
    with trained(tmp_path) as (place, _):
        recorder = Recorder(place.handle.address)
        with stranger(recorder.address, place.key) as honest:
            honest.say(*MessageEnvelope(RUN).seal(JoinRequest(member="m9")))
            assert refusal(honest.answer())
        recorder.close()
        assert len(recorder.said) > 500
        for _ in range(20):
            caller = call(place.handle.address)
            with contextlib.suppress(OSError):
                caller.sendall(bytes(recorder.said))
                caller.settimeout(0.2)
                while caller.recv(1 << 16):
                    pass
            caller.close()


def besiege(folder: Path) -> None:
    """In a process of its own: strangers at the endpoints of workers, until they are done."""
    assert soon(WAIT, lambda: len(list(folder.glob("endpoint-*"))) == 2)
    endpoints = [path.read_text().split() for path in sorted(folder.glob("endpoint-*"))]
    rounds = 0
    while not (folder / "done").exists():
        for address, public in endpoints:
            try:
                disturb(address, 2)
            except (ConnectionRefusedError, ConnectionResetError):  # the workers have seen enough, and are gone
                return
            mine = CurveKeyPair.new()
            for key in (None, ClientCredentials(mine, public.encode())):
                other = Stranger(address, key)
                other.socket.sndtimeo = 100
                with contextlib.suppress(zmq.Again):
                    other.say(encode(LinkClosed("run", 0, 0, 1, 0, "ended", 0)))
                other.close()
        rounds += 1
        (folder / "rounds").write_text(str(rounds))


def test_a4_a9_strangers_at_the_doors_of_links(tmp_path: Path) -> None:
    """Two workers add up, while strangers do what they can: every sum is right, and nobody grows."""
    siege = Forked(tmp_path, lambda: besiege(tmp_path))

    def body(world: WorkerWorld) -> Result:
        group = linked_by_keys(world.group)
        part = tmp_path / f"part-{group.rank}"
        entry = group.mesh.loop.book[group.rank]
        part.write_text(f"{entry.address} {entry.public.decode()}")
        part.rename(tmp_path / f"endpoint-{group.rank}")
        group.gather(b"")
        size, count = resident(os.getpid()), 0
        while True:
            assert group.gather(f"{group.rank} {count}".encode()) == [f"{rank} {count}".encode() for rank in range(2)]
            count += 1
            enough = (tmp_path / "rounds").exists() and int((tmp_path / "rounds").read_text() or 0) >= 3
            if group.gather(b"y" if enough else b"")[0] == b"y":
                break
        return {"found": torch.tensor([group.mesh.loop.receiver.refused, resident(os.getpid()) - size, count])}

    try:
        results = run_world(2, body, seconds=WAIT)
    finally:
        (tmp_path / "done").touch()
    outcome = siege.wait(WAIT)
    assert outcome.code == 0, outcome.err
    for refused, growth, count in (result["found"].tolist() for result in results):
        assert refused == 0, "something of theirs came as far as our decoder"
        assert growth < 32 << 20
        assert count > 0
