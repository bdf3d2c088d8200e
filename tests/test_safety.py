"""Rules that a reader would have to take on trust otherwise, checked on the syntax tree of every module."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "shoal"
FILES = sorted(SOURCE.rglob("*.py"))

DECODERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
"""Each of them runs code that stands in its input."""
CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"}
TAME = {"allow_pickle": "False", "shell": "False", "weights_only": "True"}
"""Keywords, and the one value each may have."""
WAITS = {
    "recv",
    "recv_into",
    "recvfrom",
    "accept",
    "join",
    "get",
    "wait",
    "acquire",
    "communicate",
    "result",
    "sem_wait",
}
"""Without an argument, each of them may wait for ever."""

REVIEWED = {
    ("cli/lab.py", "wait"): "the user's own shell or command, which ends when the user says",
    ("lab/probes.py", "accept"): "its children are killed when the measuring parent's deadline is over",
    ("groups/probe.py", "accept"): "the listener has a timeout",
    ("groups/process_group.py", "wait"): "work of a gloo group, which has a timeout since it was made",
    ("sync/server/member_areas.py", "accept"): "the listener never blocks",
    ("launch/pool/server.py", "accept"): "the selector has said that somebody connects",
    ("serve/http.py", "result"): "of a task that is done",
    ("testing/launcher.py", "wait"): "of a process that was just killed",
    ("transport/loop_commands.py", "acquire"): "another thread holds it for one short command",
    ("transport/message_ticket.py", "acquire"): "a lock that was just made",
    ("sync/engine/collective.py", "wait"): "work of a process group, which has a timeout since it was made",
}


REVIEWED_CALLS = {
    (
        "train/checkpoint/legacy.py",
        "torch.load",
    ): "weights_only, in a process of its own without network: `shoal import`",
}

BOUND = {
    "sync/server/process.py": "a socket file in a folder of this user's alone",
    "sync/server/member_areas.py": "a socket file in the same folder, which the server has checked before",
    "sync/server/replica_process.py": "socket files in a folder of this user's alone",
    "membership/coordinator_socket.py": "to an address that `check_address` lets pass: a private folder, or with keys",
    "launch/address.py": "to see whether an address is free; nothing listens, and it is closed at once",
    "transport/endpoint.py": "who connects must show a key of the address book; without keys only files are bound",
    "transport/authenticator.py": "inside the process, where ZeroMQ asks whose key it is",
    "lab/probes.py": "inside a namespace that has no way out",
    "groups/probe.py": "to one address, for one connection, which must know a token",
    "cli/doctor.py": "to the address a run would listen at, for one connection of its own",
    "sync/datagrams/thread.py": "to the address of the worker's links; datagrams are sealed by keys that these carry",
    "launch/pool/server.py": "a socket file in the user's private folder",
    "core/http_access.py": "to loopback; elsewhere only with a token of a private file",
}


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@cache
def tree(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def nodes(path: Path, *kinds: type) -> Iterator[ast.AST]:
    return (node for node in tree(path.read_text()) if isinstance(node, kinds))


def decoders(path: Path) -> list[str]:
    """Imports of what runs code that stands in its input."""
    found = []
    for node in nodes(path, ast.Import, ast.ImportFrom):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if {name.partition(".")[0] for name in names} & DECODERS:
            found.append(f"{relative(path)}:{node.lineno}")
    return found


def calls_that_run_text(path: Path) -> list[str]:
    found = []
    for node in nodes(path, ast.Call):
        called = ast.unparse(node.func)
        told = {word.arg: ast.unparse(word.value) for word in node.keywords}
        allowed = called not in CALLS or (relative(path), called) in REVIEWED_CALLS
        tame = all(told.get(word, default) == default for word, default in TAME.items())
        if not (allowed and tame):
            found.append(f"{relative(path)}:{node.lineno}")
    return found


def bare_waits(path: Path) -> set[tuple[str, str]]:
    """Calls `something.wait()` and the like with no argument; `", ".join(words)` has one, and is no wait."""
    calls = (node for node in nodes(path, ast.Call) if isinstance(node.func, ast.Attribute))
    return {(relative(path), c.func.attr) for c in calls if c.func.attr in WAITS and not c.args and not c.keywords}


def test_no_decoder_that_runs_code_is_imported() -> None:
    assert [place for path in FILES for place in decoders(path)] == []


def test_nothing_that_runs_text_is_called() -> None:
    assert [place for path in FILES for place in calls_that_run_text(path)] == []


def test_every_wait_has_an_end() -> None:
    found = set().union(*(bare_waits(path) for path in FILES))
    assert found == set(REVIEWED), "a wait without a deadline: give it one, or give the reason why it ends"


def test_sockets_are_bound_to_this_host_only() -> None:
    for path in FILES:
        for node in nodes(path, ast.Constant):
            assert node.value not in ("0.0.0.0", "::", "tcp://*"), f"{relative(path)}:{node.lineno}"
        for node in nodes(path, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("bind", "create_server"):
                if relative(path) in BOUND:
                    continue
                assert any(host in ast.unparse(node) for host in ("127.0.0.1", "localhost", "::1")), relative(path)


def test_the_rules_see_what_they_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_safety.SOURCE", tmp_path)
    (tmp_path / "bad.py").write_text("queue.get()\nthread.join()\n', '.join(x)\nqueue.get(timeout=1)\nd.get('a')\n")
    assert bare_waits(tmp_path / "bad.py") == {("bad.py", "get"), ("bad.py", "join")}
    (tmp_path / "bad.py").write_text("from pickle import loads\n")
    assert decoders(tmp_path / "bad.py") == ["bad.py:1"]
    (tmp_path / "bad.py").write_text("eval(x)\nlen(x)\nrun(x, shell=True)\ntorch.load(x)\nf(weights_only=False)\n")
    assert calls_that_run_text(tmp_path / "bad.py") == [f"bad.py:{line}" for line in (1, 3, 4, 5)]
