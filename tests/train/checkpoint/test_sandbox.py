"""The process that reads an old `.pt` file can do nothing but that, even if the file makes it run code."""

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal.train.checkpoint.shard import parse

ATTEMPTS = """
import json, os, resource, socket
found = {}
def attempt(name, act):
    try:
        act()
        found[name] = "done"
    except (OSError, ValueError):
        found[name] = "refused"
def forks():
    for _ in range(50):
        if os.fork() == 0:
            os._exit(0)
attempt("read", lambda: open(HERE + "/canary").read())
attempt("write", lambda: open(HERE + "/made", "w"))
attempt("remove", lambda: os.unlink(HERE + "/canary"))
attempt("list", lambda: os.listdir(HERE))
attempt("connect", lambda: socket.socket().connect(("127.0.0.1", PORT)))
attempt("fork", forks)
attempt("execute", lambda: os.execv("/bin/true", ["true"]))
attempt("signal", lambda: os.kill(PARENT, 0))
attempt("limit", lambda: resource.setrlimit(resource.RLIMIT_NPROC, (9, 9)))
attempt("root", lambda: os.setuid(0))
os.write(2, json.dumps(found).encode() + b"\\n")
"""

HELPLESS = """
import sys, functools, torch
from shoal.train.checkpoint import legacy, sandbox
read = torch.load
torch.load = lambda file, **_: read(file, map_location="cpu", weights_only=False)  # as if weights_only had a hole
for wall in sys.argv.pop().split():
    setattr(sandbox, wall, lambda: False)
legacy.main()
"""


class Hostile:
    """Runs code when it is unpickled."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[object, tuple[str, dict[str, object]]]:
        return exec, (self.code, {})


@pytest.mark.parametrize("without", ["", "filter_calls leave_network"], ids=["all", "without seccomp"])
def test_code_in_a_file_can_do_nothing(tmp_path: Path, without: str) -> None:
    (tmp_path / "canary").touch()
    tmp_path.chmod(0o777)  # it is the sandbox that refuses, not the mode of a folder
    with socket.create_server(("127.0.0.1", 0)) as server:
        facts = f"HERE, PORT, PARENT = {str(tmp_path)!r}, {server.getsockname()[1]}, {os.getpid()}\n"
        (tmp_path / "file.pt").write_bytes(pickle.dumps(Hostile(facts + ATTEMPTS)))
        words = [sys.executable, "-c", HELPLESS, str(tmp_path / "file.pt"), str(tmp_path / "out"), without]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "{" in done.stderr, done.stderr
    found = json.loads(next(line for line in done.stderr.splitlines() if line.startswith("{")))
    assert len(found) == 10
    assert set(found.values()) == {"refused"}, found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["canary", "file.pt", "out"]


def test_honest_files_of_many_kinds_are_read_inside(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    kinds = [torch.ones(3, dtype=kind) for kind in (torch.float16, torch.bfloat16, torch.int8, torch.bool)]
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "kinds": kinds,
        "large": torch.rand(999, 999),
    }
    for new in (True, False):
        source, target = tmp_path / f"{new}.pt", tmp_path / f"{new}.safetensors"
        torch.save(content, source, _use_new_zipfile_serialization=new)
        words = [sys.executable, "-m", "shoal.train.checkpoint.legacy", str(source), str(target)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        tensors, _ = parse(target.read_bytes())
        assert torch.equal(tensors["large"], content["large"])
        assert done.stdout == f"{len(tensors)}\n"
