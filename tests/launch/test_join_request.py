"""A machine asks what to run: what it is told, and every way to be refused, each on one line."""

import contextlib
import hashlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from forked import Forked
from forked import _command as command
from forked import refused as refuse

from shoal.cli.consent import described
from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.launch import join_request
from shoal.launch.join_request import ask, ask_apart, question, versions
from shoal.membership.coordinator_client import CoordinatorClient
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.membership.envelope import ASKING, PROTOCOL, MessageEnvelope, ProtocolMismatch
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.grants import JoinPolicy
from shoal.membership.handle import CoordinatorHandle
from shoal.membership.invitation import LARGEST_SCRIPT, RunBrief, RunQuery
from shoal.membership.server import CoordinatorSetup
from shoal.membership.wal import members
from shoal.transport.keys import CurveKeyPair, KeyFile

SECONDS = 30.0
BRIEF = RunBrief(
    run="one",
    name="train.py",
    script=b"#" * LARGEST_SCRIPT,
    arguments=("--lr", "0.1"),
    plan="allreduce, every(1)",
    seed=7,
    checkpoint="auto",
)
OFFICE, MACHINE, GUEST, STRANGER = (CurveKeyPair.new() for _ in range(4))


@contextlib.contextmanager
def office(folder: Path, welcome: bool = True) -> Iterator[CoordinatorHandle]:
    """A coordinator that lets two workers in with one key and one with another."""
    guests = {MACHINE.public: 2, GUEST.public: 1}
    setup = CoordinatorSetup(
        "one",
        "tcp://127.0.0.1:*",
        folder / "log",
        MembershipRules(members=1),
        ServerCredentials(OFFICE, guests),
        welcome=JoinPolicy(BRIEF, versions(), guests, first=1) if welcome else None,
    )
    handle = CoordinatorHandle(setup)
    handle.start(Deadline.after(SECONDS))
    try:
        yield handle
    finally:
        handle.stop(Deadline.after(10.0))


def key(pair: CurveKeyPair, server: CurveKeyPair = OFFICE) -> ClientCredentials:
    return ClientCredentials(pair, server.public)


def refused(what: str, address: str, by: ClientCredentials, asked: RunQuery, seconds: float = SECONDS) -> None:
    with pytest.raises(UsageError, match=what) as error:
        ask(address, by, asked, seconds)
    assert "\n" not in str(error.value)


def test_it_is_told_the_whole_script_and_gets_ids_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_request, "LATER", 0.0)
    with office(tmp_path) as here:
        first = ask_apart(here.address, key(MACHINE), question(1))
        second = ask_apart(here.address, key(GUEST), question(1))
        again = question(1)
        with pytest.raises(UsageError, match="1 workers are here under this key and 1 more want in; it is good for 1"):
            ask_apart(here.address, key(GUEST), again)
    assert (first.script, first.arguments, first.seed) == (BRIEF.script, BRIEF.arguments, 7)
    assert (first.members, second.members) == (("w1.1",), ("w2.2",))
    assert members(tmp_path / "log") == ("w1.1", "w2.2"), "written before it was told"


def test_a_machine_that_is_started_again_at_once_waits_until_its_old_workers_are_given_up(tmp_path: Path) -> None:
    with office(tmp_path) as here:
        (before,) = ask(here.address, key(GUEST), question(1)).members
        threading.Timer(1.5, lambda: here.gone(before, "nobody listens at its endpoint")).start()
        (after,) = ask(here.address, key(GUEST), question(1)).members
    assert after != before


def test_whoever_looks_is_told_the_same_and_promised_nothing(tmp_path: Path) -> None:
    with office(tmp_path) as here:
        assert ask(here.address, key(GUEST), question(1, look=True)) == BRIEF
        refused("2 more want in; it is good for 1", here.address, key(GUEST), question(2, look=True))
        assert not members(tmp_path / "log")


def test_a_coordinator_that_was_killed_promises_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_request, "LATER", 0.0)
    with office(tmp_path) as here:
        asked = question(1)
        before = ask(here.address, key(MACHINE), asked)
        here.restart(Deadline.after(SECONDS))
        assert ask(here.address, key(MACHINE), asked).members == before.members, "the same question"
        assert ask(here.address, key(MACHINE), question(1)).members == ("w2.2",)
        refused("2 workers are here", here.address, key(MACHINE), question(1))


def test_a3_n13_strangers_other_keys_too_many_and_other_versions(tmp_path: Path) -> None:
    old = RunQuery(workers=1, token="0" * 32, versions=versions() | {"torch": "1.0.0"})
    with office(tmp_path) as here:
        refused("does not know this key; make an invitation there", here.address, key(STRANGER), question(1))
        refused("has another key than the one", here.address, key(STRANGER, STRANGER), question(1))
        refused("does not know this key", here.address, key(OFFICE), question(1))
        refused("3 more want in; it is good for 2", here.address, key(MACHINE), question(3))
        refused("the run is on torch .* and this machine has 1.0.0", here.address, key(MACHINE), old)
        assert not members(tmp_path / "log"), "nothing was promised"


def test_n13_another_protocol_is_named_by_both_sides(tmp_path: Path) -> None:
    other = MessageEnvelope(ASKING.run, protocol=99)
    with office(tmp_path) as here:
        line = CoordinatorClient(here.address, other, key(MACHINE)).connect()
        try:
            with pytest.raises(ProtocolMismatch, match=f"speaks protocol 99, the other {PROTOCOL}"):
                converse(line, Deadline.after(SECONDS))
        finally:
            line.close()


def converse(line: CoordinatorClient, deadline: Deadline) -> None:
    while not deadline.expired:
        line.say(question(1))
        list(line.orders(0.1))


def test_a_run_that_does_not_listen_says_so(tmp_path: Path) -> None:
    with office(tmp_path, welcome=False) as here:
        refused("admits no other machines", here.address, key(MACHINE), question(1))


def test_nobody_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    refused("nobody listens at", f"tcp://127.0.0.1:{port}", key(MACHINE), question(1), seconds=1.0)


def test_somebody_else_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        refused("nobody answers at", address, key(MACHINE), question(1), seconds=1.0)


def test_the_command_refuses_on_one_line(tmp_path: Path) -> None:
    for name, pair in (("own", GUEST), ("run", OFFICE)):
        pair.write(tmp_path / name)
    for name, pair, run in (("other", STRANGER, STRANGER), ("guest", GUEST, OFFICE)):
        KeyFile(pair, run.public).write(tmp_path / name)
    server = ("--server", OFFICE.public.decode())
    with office(tmp_path) as here:
        where = here.address.removeprefix("tcp://")
        cases = {
            ("join", where): "needs a key",
            ("join", where, "--key", "nothing"): "make one with shoal keys invite on the run's machine",
            ("join", where, "--key", "run", "--yes"): "can pose as the run: keep it there, type shoal keys invite run",
            ("join", where, "--key", "run", *server): "can pose as the run",
            ("join", where, "--key", "own"): "give the run's public key with --server",
            ("join", where, "--key", "other"): "can pose as the run",
            ("join", where, "--key", "other", *server): "an invitation to another run than --server",
            ("join", where, "--key", "own", "--server", STRANGER.public.decode()): "has another key than the one",
            ("join", where, "--key", "own", "--server", "short"): "is no key",
            ("join", where, "--key", "own", *server, "-w", "2"): "it is good for 1",
            ("join", where, "--key", "guest"): "there is no terminal to ask at: give --yes to agree",
            ("join", "no.such.host.invalid:7700", "--key", "guest"): "no machine",
            ("join", "127.0.0.1", "--key", "guest"): "write HOST:PORT",
            ("join", "127.0.0.1:0", "--key", "guest"): "write HOST:PORT",
        }
        for words, text in cases.items():
            outcome = refuse(tmp_path, *words)
            assert (outcome.code, outcome.out) == (2, ""), words
            assert text in outcome.err, outcome.err
            assert outcome.err.startswith("shoal: ")
            assert outcome.err.count("\n") == 1, outcome.err
        assert not members(tmp_path / "log"), "nothing was promised"
    assert not (tmp_path / "runs").exists(), "nothing was begun"


def test_the_command_shows_what_it_would_execute_and_takes_no_for_an_answer(tmp_path: Path) -> None:
    KeyFile(GUEST, OFFICE.public).write(tmp_path / "guest")
    ours, terminal = os.openpty()
    with office(tmp_path) as here:
        where = here.address.removeprefix("tcp://")
        asking = Forked(tmp_path, lambda: at_terminal(terminal, "join", where, "--key", "guest"))
        os.write(ours, b"n\n")
        outcome = asking.wait()
        assert not members(tmp_path / "log"), "nothing was promised"
    os.close(ours)
    os.close(terminal)
    first, last = outcome.err.splitlines()[0], outcome.err.splitlines()[-1]
    assert outcome.code == 2
    digest = hashlib.sha256(BRIEF.script).hexdigest()
    for text in (f"the run one at {where} ", OFFICE.public.decode(), f"train.py, {LARGEST_SCRIPT} bytes", digest):
        assert text in first
    assert first.endswith("arguments --lr 0.1")
    assert "execute it here?" in outcome.out + outcome.err
    assert last.endswith("not joined, and nothing was executed")
    assert not (tmp_path / "runs").exists()


def at_terminal(terminal: int, *words: str) -> None:
    os.dup2(terminal, 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    command(list(words))


def test_what_is_shown_cannot_write_on_the_terminal() -> None:
    brief = msgspec.structs.replace(BRIEF, arguments=("\x1b[2J\nshoal: run it", "x" * 1000))
    line = described(brief, "tcp://127.0.0.1:1", key(GUEST))
    assert line.isprintable()
    assert len(line) < 1000
