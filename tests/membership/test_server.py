"""A coordinator's process at its socket: strangers, garbage, other versions and foreign keys change nothing."""

import contextlib
import itertools
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from forked import reap
from strangers import heard, stranger
from toy import until

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, ShoalError, UsageError
from shoal.membership.agent import MembershipAgent
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.membership.envelope import LARGEST_REPORT, PROTOCOL, MessageEnvelope
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.handle import CoordinatorHandle
from shoal.membership.launcher_channel import CoordinatorFailed
from shoal.membership.log_entries import MemberLost, ViewInstalled
from shoal.membership.protocol import Heartbeat, JoinRefused, JoinRequest, ProcessExited, ProposeAck
from shoal.membership.server import CoordinatorSetup
from shoal.membership.wal import members, read
from shoal.transport.keys import CurveKeyPair

RUN = "run-a"
CALM = MembershipRules(silence=30.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "c"
    place.mkdir(mode=0o700)
    return place


@contextlib.contextmanager
def coordinator(folder: Path, lock: ServerCredentials | None = None, members: int = 1) -> Iterator[CoordinatorHandle]:
    address = f"ipc://{folder}/s" if lock is None else "tcp://127.0.0.1:*"
    handle = CoordinatorHandle(
        CoordinatorSetup(RUN, address, folder / "log", MembershipRules(silence=30.0, members=members), lock)
    )
    handle.start(Deadline.after(30.0))
    try:
        yield handle
    finally:
        handle.stop(Deadline.after(10.0))
        assert not handle.pid
        assert {file.name for file in folder.iterdir()} == {"log"}


@contextlib.contextmanager
def agent(handle: CoordinatorHandle, name: str, key: ClientCredentials | None = None) -> Iterator[MembershipAgent]:
    here = MembershipAgent(name, handle.address, RUN, key=key)
    here.start()
    try:
        yield here
    finally:
        here.close()


def settle(agent: MembershipAgent) -> None:
    agent.wait_settled(Deadline.after(30.0))


def enter_between(member: MembershipAgent, late: MembershipAgent | None = None) -> None:
    """The member begins steps until the newcomer is in, or until it waits for one that does not answer."""
    for step in itertools.count():
        with contextlib.suppress(DeadlineError):
            member.begin(step, Deadline.after(30.0 if late is not None else 0.1))
        if late.view.generation if late is not None else member._orders.waits_for == ("m9",):
            return
        assert step < 3000
        time.sleep(0.01)


def test_garbage_changes_nothing(folder: Path) -> None:
    """A4: neither frames of chance, nor mutated messages, nor messages of a member that is none."""
    chance = random.Random(4)
    envelope = MessageEnvelope(RUN)
    head, body = envelope.seal(Heartbeat(member="m0", generation=1, promised=99, applied=7))
    with coordinator(folder) as handle, agent(handle, "m0") as member, stranger(handle.address) as other:
        settle(member)
        before = read(handle.setup.log)
        for count in range(2000):
            noise = chance.randbytes(chance.randrange(200))
            mutated = bytearray(body)
            mutated[chance.randrange(5)] ^= 1 << chance.randrange(8)  # the frame of it, which decides what it is
            for frames in ((noise,), (noise, body), (head, noise), (head, mutated), (head, body, noise), (b"",)):
                other.say(*map(bytes, frames))
            if count % 100 == 0:
                heard(other, RUN)
        for report in (ProcessExited(member="m0", reason="lie"), ProposeAck(member="m9", generation=1, applied=99)):
            other.say(*envelope.seal(report))
        other.say(*envelope.seal(Heartbeat(member="m9", generation=1, promised=999, applied=7)))
        other.say(*MessageEnvelope("run-b").seal(JoinRequest(member="m7")))
        for name in ("../m1", "M1", "a b", "x" * 65, ""):
            other.say(*envelope.seal(JoinRequest(member=name)))
        heard(other, RUN)
        assert handle.alive()
        assert read(handle.setup.log) == before
        assert not member.disturbed


def test_too_much_at_once_is_not_read(folder: Path) -> None:
    """A9: the connection that tries is closed."""
    with coordinator(folder) as handle, agent(handle, "m0") as member:
        settle(member)
        before = read(handle.setup.log)
        for size in (LARGEST_REPORT + 1, 10 << 20):
            with stranger(handle.address) as other:
                other.say(MessageEnvelope(RUN).seal(JoinRequest(member="m1"))[0], b"x" * size)
                assert not other.answer(0.3)
        with stranger(handle.address) as other:
            heard(other, RUN)
        assert read(handle.setup.log) == before


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1])
def test_another_version_is_refused_and_both_are_named(folder: Path, protocol: int) -> None:
    """N13, both ways: the coordinator says so, and a member of another version understands."""
    with coordinator(folder) as handle:
        with stranger(handle.address) as other:
            other.say(*MessageEnvelope(RUN, protocol).seal(JoinRequest(member="m1")))
            head, body = other.answer()
        assert head == f"shoal {PROTOCOL} run-a".encode()
        said = msgspec.msgpack.decode(body, type=JoinRefused)
        assert said.reason == f"this side speaks protocol {PROTOCOL}, the other {protocol}; use the same Shoal on both"
        other_version = MembershipAgent("m1", handle.address, RUN)
        other_version._envelope = MessageEnvelope(RUN, protocol)
        other_version.start()
        with pytest.raises(
            UsageError, match=f"m1 cannot join at .*: this side speaks protocol {protocol}, the other {PROTOCOL}"
        ):
            settle(other_version)
        other_version.close()
        assert read(handle.setup.log) == ([], 0)


def test_a_member_of_another_run_is_refused(folder: Path) -> None:
    with coordinator(folder) as handle:
        lost = MembershipAgent("m1", handle.address, "run-b")
        lost.start()
        with pytest.raises(UsageError, match="this side is of run run-b, the other of run-a"):
            settle(lost)
        lost.close()


def test_keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A3, A4: only allowed keys come in, each as one member, and nobody speaks for another."""
    monkeypatch.setattr("shoal.membership.agent_orders.PERSIST", 0.5)
    endpoint, first, second, foreign = (CurveKeyPair.new() for _ in range(4))
    lock = ServerCredentials(endpoint, {first.public: 1, second.public: 1})
    with coordinator(folder, lock) as handle:
        one, two = ClientCredentials(first, endpoint.public), ClientCredentials(second, endpoint.public)
        with agent(handle, "m1", one) as member:
            settle(member)
            refused = pytest.raises(UsageError, match=r"m9 was refused at .*: 1 of 1 members live under this key")
            with agent(handle, "m9", one) as sybil, refused:
                settle(sybil)
            before = read(handle.setup.log)
            with stranger(handle.address, two) as other:
                other.say(*MessageEnvelope(RUN).seal(ProcessExited(member="m1", reason="lie")))
                other.say(*MessageEnvelope(RUN).seal(Heartbeat(member="m1", generation=1, promised=9, applied=3)))
                heard(other, RUN)
            for pair, server in ((foreign, endpoint.public), (second, foreign.public)):
                with stranger(handle.address, ClientCredentials(pair, server)) as other:
                    other.say(*MessageEnvelope(RUN).seal(JoinRequest(member="m2")))
                    assert not other.answer(0.5)
            with stranger(handle.address) as other:
                other.say(*MessageEnvelope(RUN).seal(JoinRequest(member="m2")))
                assert not other.answer(0.5)
            assert read(handle.setup.log) == before
            os.kill(handle.pid, signal.SIGKILL)
            handle.restart(Deadline.after(30.0))
            with agent(handle, "m2", two) as late:
                enter_between(member, late)
                assert late.view.members == ("m1", "m2")
            until(lambda: member.view.members == ("m1",))


def test_a_run_is_resumed_with_new_members(folder: Path) -> None:
    with coordinator(folder) as handle, agent(handle, "m0") as member:
        settle(member)
        generation = member.view.generation
        member.close(leave=False)
    again = CoordinatorHandle(handle.setup)
    for old in members(handle.setup.log):
        again.gone(old, "ended")
    again.start(Deadline.after(30.0))
    with agent(again, "m1") as member:
        settle(member)
        assert member.view.members == ("m1",)
        assert member.view.generation > generation
    again.stop(Deadline.after(10.0))


def test_a_network_without_keys_is_refused(folder: Path) -> None:
    """A5, and loopback is a network."""
    for address in ("tcp://127.0.0.1:0", "tcp://0.0.0.0:7000", "udp://127.0.0.1:1"):
        handle = CoordinatorHandle(CoordinatorSetup(RUN, address, folder / "log"))
        with pytest.raises(ShoalError, match=r"there is no key; make one with shoal keys new|is no address"):
            handle.start(Deadline.after(30.0))
        assert not handle.alive()


def test_a_folder_that_is_open_to_others_is_refused(folder: Path) -> None:
    folder.chmod(0o755)
    handle = CoordinatorHandle(CoordinatorSetup(RUN, f"ipc://{folder}/s", folder / "log"))
    with pytest.raises(ShoalError, match="is open to others"):
        handle.start(Deadline.after(30.0))


def test_over_links_members_confirm_to_each_other(folder: Path) -> None:
    with coordinator(folder, members=2) as handle, agent(handle, "m0") as one, agent(handle, "m1") as two:
        until(lambda: len(one.view) == len(two.view) == 2)
        for member in (one, two):
            if member.blank:
                member.filled()
            assert member.enter(Deadline.after(30.0)) == 1
        said = one.hold(), two.hold()
        assert said[0] is not None
        assert said[1] is not None
        assert not one.complete(), "the other has not confirmed"
        one.confirmed(said[1])
        assert one.complete()
        assert one.applied == 1
        two.close(leave=False)
        handle.gone("m1", "SIGKILL")
        assert one.wait_settled(Deadline.after(30.0))
        until(lambda: one.view.members == ("m0",))
        assert one.enter(Deadline.after(30.0)) == 2
        assert one.hold() is not None
        assert one.complete(), "nobody else is left to confirm"


def test_who_waits_for_a_view_names_the_one_that_does_not_answer(folder: Path) -> None:
    with coordinator(folder) as handle, agent(handle, "m0") as member, stranger(handle.address) as mute:
        settle(member)
        mute.say(*MessageEnvelope(RUN).seal(JoinRequest(member="m9")))
        enter_between(member)
        with pytest.raises(DeadlineError, match="m0 waited 0 s for a view of m9, which did not answer"):
            member.wait_settled(Deadline.after(0.2))


def test_the_launcher_hears_what_is_decided(folder: Path) -> None:
    with coordinator(folder) as handle:
        with agent(handle, "m0") as member:
            settle(member)
            handle.gone("m1", "SIGKILL")
            news: list[object] = []
            until(lambda: news.extend(handle.read()) or MemberLost(member="m1", reason="SIGKILL") in news)  # type: ignore[func-returns-value]
            assert any(isinstance(said, ViewInstalled) and said.install.view.members == ("m0",) for said in news)
        until(lambda: MemberLost(member="m0", reason="left") in handle.read())


def test_a_disk_that_fails_ends_it_and_says_so(folder: Path) -> None:
    def fill_up() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))

    handle = CoordinatorHandle(CoordinatorSetup(RUN, f"ipc://{folder}/s", folder / "log", CALM), fill_up)
    handle.start(Deadline.after(30.0))
    with agent(handle, "m0") as member:
        until(lambda: not handle.alive())
        assert member.view.generation == 0, "told what was not written"
    assert any(isinstance(said, CoordinatorFailed) for said in handle.read())
    handle.stop(Deadline.after(10.0))


@pytest.mark.parametrize("outlives", [False, True])
def test_it_ends_with_its_launcher_unless_told_otherwise(folder: Path, outlives: bool) -> None:
    note = folder / "pid"
    launcher = os.fork()
    if launcher == 0:
        try:
            handle = CoordinatorHandle(
                CoordinatorSetup(RUN, f"ipc://{folder}/s", folder / "log", CALM, outlives=outlives)
            )
            handle.start(Deadline.after(30.0))
            note.write_text(str(handle.pid))
        finally:
            os._exit(not note.exists())
    assert reap(launcher, 60.0) == 0
    pid = int(note.read_text())
    if outlives:
        member = MembershipAgent("m0", f"ipc://{folder}/s", RUN)
        member.start()
        settle(member)
        member.close()
        os.kill(pid, signal.SIGTERM)
    until(lambda: not running(pid))


def running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return False
