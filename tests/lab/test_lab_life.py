"""A lab leaves nothing behind, however it ends; and what runs in it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.clock import Deadline
from shoal.core.errors import ShoalError, UsageError
from shoal.lab.actions import FreezeHosts, KillHosts, ThawHosts
from shoal.lab.apply import apply
from shoal.lab.inside import Say, inside
from shoal.lab.lab import NetworkLab
from shoal.lab.load import parse_lab
from shoal.lab.measure import fate

HOLDER = """
import os, sys, time
from shoal.lab.lab import NetworkLab
from shoal.lab.load import parse_lab
with NetworkLab(parse_lab("3 hosts, 10mbit, 5ms, speed 0.5")) as lab:
    lab.popen(0, ["sleep", "600"])
    child = os.fork()
    if child == 0:
        if "enter" in sys.argv:
            lab.enter(1)
        time.sleep(600)
    print(child, flush=True)
    time.sleep(0 if "end" in sys.argv else 600)
    if "raise" in sys.argv or "end" in sys.argv:
        sys.exit(3)
"""


def namespaces(pid: int) -> list[str]:
    folder = Path("/run/netns")
    return [name for name in os.listdir(folder) if name.startswith(f"shoal-{pid}-")] if folder.exists() else []


def groups(pid: int) -> list[str]:
    root = Path("/sys/fs/cgroup")
    return [str(each) for pattern in ("", "*/") for each in root.glob(f"{pattern}shoal-{pid}-*")]


def helpers(pid: int) -> list[str]:
    """Command lines of the lab's own processes: the switch, the guard, the reaper."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if re.search(rf"link-\w+ (switch|guard) {pid} |shoal-lab-reaper \S+ {pid} ", line):
            found.append(line)
    return found


def left(pid: int) -> list[str]:
    return namespaces(pid) + helpers(pid) + groups(pid)


def until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = Deadline.after(seconds)
    while not condition() and not deadline.expired:
        time.sleep(0.02)
    return condition()


def holder(*words: str) -> tuple[subprocess.Popen[str], int]:
    """A process that holds a lab, and the id of a child that it forked."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.stdout.close()
    assert "end" in words or (len(namespaces(process.pid)) == 3 and len(helpers(process.pid)) >= 3)
    return process, child


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_after_a_signal(possible: None, number: signal.Signals) -> None:
    process, _ = holder("enter")
    process.send_signal(number)
    process.wait()
    assert until(lambda: not left(process.pid)), left(process.pid)


def test_nothing_is_left_though_something_still_runs_in_a_slow_group(possible: None) -> None:
    """A process that was killed under a small quota takes its time: a group is removed once it is empty."""
    process, _ = holder()
    stays = subprocess.Popen(["sleep", "600"])
    for group in groups(process.pid):
        (Path(group) / "cgroup.procs").write_text(str(stays.pid))
    process.kill()
    process.wait()
    assert until(lambda: not left(process.pid)), left(process.pid)
    stays.kill()
    stays.wait()


def test_nothing_is_left_though_a_forked_child_lives_on(possible: None) -> None:
    process, child = holder()
    process.kill()
    process.wait()
    assert until(lambda: not left(process.pid)), left(process.pid)
    os.kill(child, signal.SIGKILL)  # it was there until now: it never entered a host


def test_nothing_is_left_after_the_end(possible: None) -> None:
    process, _ = holder("enter", "end")
    assert process.wait() == 3
    assert not left(process.pid)


def test_nothing_is_left_after_an_exception(possible: None) -> None:
    def fail() -> None:
        with NetworkLab(parse_lab("2 hosts")) as lab:
            lab.popen(1, ["sleep", "600"])
            raise ZeroDivisionError

    before = namespaces(os.getpid())
    with pytest.raises(ZeroDivisionError):
        fail()
    assert namespaces(os.getpid()) == before


def test_a_leftover_of_the_same_name_does_not_disturb(possible: None) -> None:
    with NetworkLab(parse_lab("1 host")) as lab:
        number = int(lab.hosts[0].name.split("-")[2])
    leftover = f"shoal-{os.getpid()}-{number + 1}-0"  # what the next lab would be called
    subprocess.run(["ip", "netns", "add", leftover], check=True)
    try:
        with NetworkLab(parse_lab("2 hosts")) as lab:
            assert leftover not in [host.name for host in lab.hosts]
            assert fate(lab, 0, 1, 20).received == 20
        assert namespaces(os.getpid()).count(leftover) == 1
    finally:
        subprocess.run(["ip", "netns", "delete", leftover], check=True)


def test_sixteen_hosts_hear_each_other_and_are_removed(possible: None) -> None:
    before = left(os.getpid())
    with NetworkLab(parse_lab("16 hosts, 100mbit, 1ms")) as lab:
        assert [host.address for host in lab.hosts] == [f"10.77.0.{n}" for n in range(1, 17)]
        assert fate(lab, 15, 3, 50).received == 50
    assert left(os.getpid()) == before


def test_a_program_is_on_its_host_and_cannot_leave_the_lab(lab: NetworkLab) -> None:
    probe = "import os, socket; print(os.environ['SHOAL_LAB_HOST'], os.environ['MASTER_ADDR'], socket.if_nameindex())"
    out = lab.popen(2, [sys.executable, "-c", probe], stdout=subprocess.PIPE, text=True).communicate()[0]
    assert out.startswith("2 10.77.0.1 ")
    assert "'lo'" in out
    assert out.count("eth0") == 1
    leave = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('192.0.2.1', 9))"
    away = lab.popen(2, [sys.executable, "-c", leave], stderr=subprocess.PIPE, text=True)
    assert "Network is unreachable" in away.communicate()[1]


def say_pids(say: Say) -> None:
    say(os.getpid())
    signal.pause()


def test_hosts_are_frozen_thawed_and_killed(lab: NetworkLab) -> None:
    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    with inside(lab, 3, say_pids) as child:
        assert child.hear() == child.pid
        apply(lab, FreezeHosts((3,)))
        assert until(lambda: state(child.pid) == "T")
        apply(lab, ThawHosts((3,)))
        assert until(lambda: state(child.pid) == "S")
        apply(lab, KillHosts((3,)))
        assert until(lambda: state(child.pid) == "Z")


def test_a_forked_child_that_ends_does_not_end_the_lab(lab: NetworkLab) -> None:
    pid = os.fork()
    if pid == 0:
        lab.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert fate(lab, 0, 1, 20).received == 20


def test_the_labs_own_process_cannot_enter(lab: NetworkLab) -> None:
    with pytest.raises(ShoalError, match="fork first"):
        lab.enter(0)
    with pytest.raises(UsageError, match="hosts are 0 to 3"):
        lab.cut(4)


def test_a_lab_that_is_not_open_says_so() -> None:
    with pytest.raises(ShoalError, match="use it inside 'with"):
        NetworkLab(parse_lab("2 hosts")).heal()
