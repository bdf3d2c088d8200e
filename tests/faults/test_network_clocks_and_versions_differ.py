"""N12 clocks that differ by an hour or go back; N13 versions that differ: nobody is given up, nobody is garbled."""

import ctypes
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from forked import Forked, _command, command, python, soon
from scripts import given_up
from strangers import heard, refusal, stranger
from test_killed_or_frozen_worker import WAIT, disturbed, doing, kill

from shoal.launch import join_request
from shoal.launch.live_runs import live
from shoal.launch.worker_starter import WorkerStarter
from shoal.membership.allow_list import invite
from shoal.membership.envelope import PROTOCOL, MessageEnvelope
from shoal.membership.protocol import JoinRequest, ProcessExited
from shoal.transport.keys import CurveKeyPair
from shoal.transport.messages import PROTOCOL as ON_LINKS

pytestmark = pytest.mark.timeout(300)
NEW_TIME = 0x80
"""CLONE_NEWTIME: a name space of the monotonic clock."""
SKEW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
/* Every process has a wall clock of its own, an hour before or behind, that goes back two seconds every second. */
int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, which, now);
    if (!failed && which == CLOCK_REALTIME) {
        long second = now->tv_sec;
        now->tv_sec += (getpid() % 2 ? 3600 : -3600) - 3 * (second % 7);
    }
    return failed;
}
"""


def another_time(hours: int) -> None:
    """Move this process, which has one thread, to a name space whose monotonic clock is so far ahead."""
    system = ctypes.CDLL(None, use_errno=True)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if not system.unshare(NEW_TIME):
                Path("/proc/self/timens_offsets").write_text(f"monotonic {3600 * hours} 0\nboottime {3600 * hours} 0\n")
            os.write(ready[1], b".")
            os.read(done[0], 1)
        finally:
            os._exit(0)
    os.read(ready[0], 1)
    place = os.open(f"/proc/{child}/ns/time_for_children", os.O_RDONLY)
    failed = system.setns(place, NEW_TIME)
    os.close(place)
    os.write(done[1], b".")
    os.waitpid(child, 0)
    for end in (*ready, *done):
        os.close(end)
    if failed:
        raise OSError(ctypes.get_errno(), "no time name space")


@pytest.mark.soak
def test_n12_monotonic_clocks_that_differ(tmp_path: Path) -> None:
    """Each worker has another one, and one of them is lost: leases, silence and views mean nobody else's clock."""
    enter = WorkerStarter.enter

    def inject() -> None:
        def elsewhen(self: WorkerStarter, rank: int) -> None:
            another_time((1, 5, 9)[rank])
            enter(self, rank)

        WorkerStarter.enter = elsewhen  # type: ignore[method-assign]

    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), inject=inject)
    assert err.count("was lost") == 1, err


@pytest.mark.soak
def test_n12_wall_clocks_that_differ_and_go_back(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "skew.c").write_text(SKEW)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", "skew.so", "skew.c"], cwd=tmp_path, check=True)
    (tmp_path / "script.py").write_text(SCRIPT)
    env = os.environ | {"LD_PRELOAD": str(tmp_path / "skew.so"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "shoal", "run", "--name", "one", "--workers", "2", "--json", "script.py"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "was lost" not in done.stderr
    shifts = [float(word) for line in done.stdout.splitlines() if "shift" in line for word in line.split()[2:3]]
    assert len(shifts) == 2, done.stdout
    assert all(abs(shift) > 3000 for shift in shifts), "the clocks were not shifted"
    (summary,) = (tmp_path / "runs").iterdir()
    assert (summary / "summary.json").exists()


SCRIPT = """
import os, subprocess, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(240, 4), torch.randn(240, 2))
model, optimizer, loader = run.join(model, optimizer, DataLoader(data, batch_size=4))
for epoch in run.epochs(2):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.03)
    run.report(seconds=time.time())
print("shift", time.time() - os.stat("/proc/self").st_ctime)
"""


def test_n13_a4_other_versions_and_noise_at_the_door_of_a_live_run(tmp_path: Path) -> None:
    """On one host there are no keys: only this user comes as far as the socket, and cannot say much there either."""

    def knock(_running: Forked) -> None:
        (notice,) = live()
        assert Path(notice.folder).stat().st_mode & 0o777 == 0o700
        with stranger(f"ipc://{notice.folder}/coordinator") as other:
            for protocol in (PROTOCOL - 1, PROTOCOL + 1):
                other.say(*MessageEnvelope("one", protocol).seal(JoinRequest(member="w9.9")))
                told = refusal(other.answer(WAIT))
                assert told == f"this side speaks protocol {PROTOCOL}, the other {protocol}; use the same Shoal on both"
            for number in range(300):
                other.say(random.Random(number).randbytes(number))
                other.say(f"shoal {PROTOCOL} one".encode(), random.Random(number).randbytes(number))
            other.say(*MessageEnvelope("one").seal(ProcessExited(member="w0.1000000", reason="lie")))
            heard(other, "one")
        assert [worker.rank for worker in doing()] == [0, 1, 2]

    assert "was lost" not in disturbed(tmp_path, knock)


def other_versions(**change: str) -> None:
    mine = join_request.versions() | change
    join_request.versions = lambda: mine


def other_protocol(number: int) -> None:
    join_request.ASKING = replace(join_request.ASKING, protocol=number)


def both_named(other: int) -> str:
    return f"speaks protocol {other}, the other {PROTOCOL}|speaks protocol {PROTOCOL}, the other {other}"


GUESTS: dict[str, tuple[Callable[[], None], str]] = {
    "torch": (lambda: other_versions(torch="1.13.0"), r"the run is on torch \S+ and this machine has 1\.13\.0"),
    "shoal": (lambda: other_versions(shoal="99.0.0"), r"the run is on shoal \S+ and this machine has 99\.0\.0"),
    "older": (lambda: other_protocol(PROTOCOL - 1), both_named(PROTOCOL - 1)),
    "newer": (lambda: other_protocol(PROTOCOL + 1), both_named(PROTOCOL + 1)),
}


def test_n13_machines_of_other_versions_cannot_join(tmp_path: Path) -> None:
    """Each is refused on one line that names both; the run does not notice."""
    CurveKeyPair.new().write(tmp_path / "key")
    invite(tmp_path / "key", tmp_path / "invitation")
    (tmp_path / "script.py").write_text(SCRIPT.replace("time.sleep(0.03)", "time.sleep(not os.path.exists('go'))"))
    words = ("run", "--listen", "127.0.0.1:0", "--key", "key", "--name", "one", "--workers", "1", "script.py")
    running = command(tmp_path, *words)
    assert soon(WAIT, lambda: "shoal join " in running.err.read_text())
    address = running.err.read_text().partition("shoal join ")[2].split()[0]
    join = ["join", address, "--yes", "--key", "invitation"]
    for name, (change, told) in GUESTS.items():
        refused = Forked(tmp_path, lambda change=change: (change(), _command(join))).wait(WAIT)  # type: ignore[misc]
        assert refused.code == 2, (name, refused.err)
        assert re.search(told, refused.err.splitlines()[-1]), (name, refused.err)
    (tmp_path / "go").touch()
    assert running.wait(WAIT).code == 0
    assert not list((tmp_path / "runs/one").glob("worker-1*"))
    assert given_up(tmp_path) == []


OTHER = """
import os
import shoal.launch.torchrun as launch
if os.environ["RANK"] == "1":
    launch.PROTOCOL += 1
import shoal
shoal.start()
"""


def test_n13_another_version_on_links_names_both(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    (tmp_path / "script.py").write_text(OTHER)
    workers = [python(tmp_path, RANK=str(rank), **place) for rank in range(2)]
    first, second = (worker.wait(WAIT) for worker in workers)
    assert first.code == second.code == 1
    assert f"this side speaks protocol {ON_LINKS} on links, worker 1 (host " in first.err
    assert f") {ON_LINKS + 1}; use the same Shoal on all hosts" in first.err
    assert f"this side speaks protocol {ON_LINKS + 1} on links, worker 0 (host " in second.err
