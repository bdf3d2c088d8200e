"""A machine asks what to run: what it is told, and every way to be refused, each on one line."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import shoal

from shoal.cluster.coordinator.grants import Welcome
from shoal.cluster.coordinator.handle import Handle
from shoal.cluster.coordinator.process import Setup
from shoal.cluster.coordinator.wal import members
from shoal.cluster.launch.asking import ask, ask_apart, question, versions
from shoal.cluster.links.keys import Keys
from shoal.cluster.membership.credentials import Key, Lock, Pair
from shoal.cluster.membership.envelope import ASKING, PROTOCOL, Envelope, Mismatch
from shoal.cluster.membership.invitation import LARGEST_SCRIPT, Ask, Brief
from shoal.cluster.membership.line import Line
from shoal.cluster.membership.rules import Rules
from shoal.core.clock import Deadline
from shoal.core.errors import UsageError

SECONDS = 30.0
BRIEF = Brief(
    run="one",
    name="train.py",
    script=b"#" * LARGEST_SCRIPT,
    arguments=("--lr", "0.1"),
    plan="allreduce, every(1)",
    seed=7,
    checkpoint="auto",
)
OFFICE, GUEST, STRANGER = Pair.new(), Pair.new(), Pair.new()


@contextlib.contextmanager
def office(folder: Path, welcome: bool = True) -> Iterator[Handle]:
    """A coordinator that lets two workers in with its own key and one with another."""
    guests = {OFFICE.public: 2, GUEST.public: 1}
    setup = Setup(
        "one",
        "tcp://127.0.0.1:*",
        folder / "log",
        Rules(members=1),
        Lock(OFFICE, guests),
        welcome=Welcome(BRIEF, versions(), guests, first=1) if welcome else None,
    )
    handle = Handle(setup)
    handle.start(Deadline.after(SECONDS))
    try:
        yield handle
    finally:
        handle.stop(Deadline.after(10.0))


def key(pair: Pair, server: Pair = OFFICE) -> Key:
    return Key(pair, server.public)


def refused(what: str, address: str, by: Key, asked: Ask, seconds: float = SECONDS) -> None:
    with pytest.raises(UsageError, match=what) as error:
        ask(address, by, asked, seconds)
    assert "\n" not in str(error.value)


def test_it_is_told_the_whole_script_and_gets_ids_of_its_own(tmp_path: Path) -> None:
    with office(tmp_path) as here:
        first = ask_apart(here.address, key(OFFICE), question(1))
        second = ask_apart(here.address, key(GUEST), question(1))
        again = question(1)
        with pytest.raises(UsageError, match="1 workers are here under this key and 1 more want in; it is good for 1"):
            ask_apart(here.address, key(GUEST), again)
    assert (first.script, first.arguments, first.seed) == (BRIEF.script, BRIEF.arguments, 7)
    assert (first.members, second.members) == (("w1.1",), ("w2.2",))
    assert members(tmp_path / "log") == ("w1.1", "w2.2"), "written before it was told"


def test_a_coordinator_that_was_killed_promises_nothing_twice(tmp_path: Path) -> None:
    with office(tmp_path) as here:
        asked = question(1)
        before = ask(here.address, key(OFFICE), asked)
        here.restart(Deadline.after(SECONDS))
        assert ask(here.address, key(OFFICE), asked).members == before.members, "the same question"
        assert ask(here.address, key(OFFICE), question(1)).members == ("w2.2",)
        refused("2 workers are here", here.address, key(OFFICE), question(1))


def test_a3_n13_strangers_other_keys_too_many_and_other_versions(tmp_path: Path) -> None:
    old = Ask(workers=1, token="0" * 32, versions=versions() | {"torch": "1.0.0"})
    with office(tmp_path) as here:
        refused("does not know this key; start the run with --allow", here.address, key(STRANGER), question(1))
        refused("has another key than this one", here.address, key(STRANGER, STRANGER), question(1))
        refused("3 more want in; it is good for 2", here.address, key(OFFICE), question(3))
        refused("the run is on torch .* and this machine has 1.0.0", here.address, key(OFFICE), old)
        assert not members(tmp_path / "log"), "nothing was promised"


def test_n13_another_protocol_is_named_by_both_sides(tmp_path: Path) -> None:
    other = Envelope(ASKING.run, protocol=99)
    with office(tmp_path) as here:
        line = Line(here.address, other, key(OFFICE)).connect()
        try:
            with pytest.raises(Mismatch, match=f"speaks protocol 99, the other {PROTOCOL}"):
                converse(line, Deadline.after(SECONDS))
        finally:
            line.close()


def converse(line: Line, deadline: Deadline) -> None:
    while not deadline.expired:
        line.say(question(1))
        list(line.orders(0.1))


def test_a_run_that_does_not_listen_says_so(tmp_path: Path) -> None:
    with office(tmp_path, welcome=False) as here:
        refused("lets nobody in", here.address, key(OFFICE), question(1))


def test_nobody_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    refused("nobody listens at", f"tcp://127.0.0.1:{port}", key(OFFICE), question(1), seconds=1.0)


def test_somebody_else_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        refused("nobody answers at", address, key(OFFICE), question(1), seconds=1.0)


def test_the_command_refuses_on_one_line(tmp_path: Path) -> None:
    for name, pair in (("own", GUEST), ("other", STRANGER)):
        Keys(pair.public, pair.secret).write(tmp_path / name)
    with office(tmp_path) as here:
        where = here.address.removeprefix("tcp://")
        cases = {
            ("join", where): "needs a key",
            ("join", where, "--key", "nothing"): "cannot read the keys",
            ("join", where, "--key", "other"): "has another key than this one",
            ("join", where, "--key", "own"): "has another key than this one",
            ("join", where, "--key", "own", "--server", "short"): "is no key",
            ("join", where, "--key", "own", "--server", OFFICE.public.decode(), "-w", "2"): "it is good for 1",
            ("join", "no.such.host.invalid:7700", "--key", "own"): "no machine",
            ("join", "127.0.0.1", "--key", "own"): "write HOST:PORT",
            ("join", "127.0.0.1:0", "--key", "own"): "write HOST:PORT",
        }
        for words, text in cases.items():
            outcome = shoal(tmp_path, *words)
            assert (outcome.code, outcome.out) == (2, ""), words
            assert text in outcome.err, outcome.err
            assert outcome.err.startswith("shoal: ")
            assert outcome.err.count("\n") == 1, outcome.err
    assert not (tmp_path / "runs").exists(), "nothing was begun"
