"""P1 and P2 under parameter servers: a worker is killed and replaced; a server is killed and the run begins again."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest
from forked import command, soon
from scripts import assert_exactly_once, script
from test_killed_or_frozen_worker import WAIT, disturbed
from test_killed_worker_in_local_rounds import KILLED, replaced

from shoal.lab.needs import missing

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("slot", "plan"),
    [
        pytest.param(1, "server(shards=2)", id="every step"),
        pytest.param(1, "server, stale(2, round=6)", id="stale"),
        pytest.param(0, "server(shards=2), async(round=6), topk(0.1)", id="asynchronous, coded"),
    ],
)
def test_p1_killed_under_servers_and_replaced(tmp_path: Path, slot: int, plan: str) -> None:
    """The others go on at once, another takes its place, and every sample counts once."""
    each = KILLED.replace("SLOT", str(slot))
    act = partial(replaced, tmp_path, slot)
    err = disturbed(tmp_path, act, "--plan", plan, each=each, lockstep="every" in plan)
    assert f"worker {slot} was lost (SIGKILL)" in err


@pytest.mark.parametrize(
    ("slot", "plan"),
    [
        pytest.param(1, "server, async(samples=leased, round=6)", id="a worker"),
        pytest.param(0, "server(shards=2), stale(2, samples=leased, round=6)", id="worker 0", marks=pytest.mark.soak),
    ],
)
def test_p1_killed_while_it_leases_samples_under_servers(tmp_path: Path, slot: int, plan: str) -> None:
    """What it has pushed counts; the newcomer leases too. A worker that leases has no fixed number of steps."""
    act, each = partial(replaced, tmp_path, slot), KILLED.replace("SLOT", str(slot))
    disturbed(tmp_path, act, "--plan", plan, each=each, edit=lambda text: text.replace("scheduler.step()", "pass"))


KEYED = """class Keyed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = shoal.ServedEmbedding(100, 4, rate=0.01)
    def forward(self, x):
        return x + self.words((x[:, 0].abs() * 10).long())
model = nn.Sequential(Keyed(), nn.Linear(4, 8)"""
WITH_TABLE = "0.words.*: server(shards=2), PACE; *: allreduce"


def with_table(text: str) -> str:
    return text.replace("model = nn.Sequential(nn.Linear(4, 8)", KEYED)


@pytest.mark.parametrize(
    ("slot", "pace"),
    [
        pytest.param(1, "stale(1)", id="a worker"),
        pytest.param(0, "async", id="worker 0", marks=pytest.mark.soak),
    ],
)
def test_p1_killed_with_a_part_on_servers_and_replaced(tmp_path: Path, slot: int, pace: str) -> None:
    """Nobody waits for the clock of the lost one; the newcomer's begins where the others are."""
    each, plan = KILLED.replace("SLOT", str(slot)), WITH_TABLE.replace("PACE", pace)
    err = disturbed(tmp_path, partial(replaced, tmp_path, slot), "--plan", plan, each=each, edit=with_table)
    assert f"worker {slot} was lost (SIGKILL)" in err


def test_p2_a_killed_server_of_a_part_takes_the_run_back_to_its_checkpoint(tmp_path: Path, temporary: Path) -> None:
    script(tmp_path, each="time.sleep(0.05)")
    (tmp_path / "script.py").write_text(with_table((tmp_path / "script.py").read_text()))
    plan = WITH_TABLE.replace("PACE", "async")
    words = ("--workers", "2", "--plan", plan, "--name", "one", "--checkpoint", "2steps")
    running = command(tmp_path, "run", *words, "script.py")
    assert soon(WAIT, lambda: list(tmp_path.glob("runs/one/checkpoints/step-*/worker-1.rows"))), "no checkpoint"
    os.kill(server_pid(temporary), signal.SIGKILL)
    done = running.wait(WAIT)
    assert done.code == 0, done.err
    assert "the run begins again at its last checkpoint (1 of 3)" in done.err
    assert_exactly_once(tmp_path, "one", 96, 2)


def server_pid(temporary: Path) -> int:
    (found,) = temporary.glob("shoal-servers-*/0-0.pid")
    return int(found.read_text())


def test_p2_a_killed_server_takes_the_run_back_to_its_checkpoint(tmp_path: Path, temporary: Path) -> None:
    script(tmp_path, each="time.sleep(0.05)")
    words = ("--workers", "2", "--plan", "server", "--name", "one", "--checkpoint", "2steps")
    running = command(tmp_path, "run", *words, "script.py")
    assert soon(WAIT, lambda: list(tmp_path.glob("runs/one/checkpoints/step-*"))), "no checkpoint was taken"
    os.kill(server_pid(temporary), signal.SIGKILL)
    done = running.wait(WAIT)
    assert done.code == 0, done.err
    assert (
        "shoal: server 0 died of SIGKILL (signal 9); the run begins again at its last checkpoint (1 of 3)" in done.err
    )
    assert_exactly_once(tmp_path, "one", 96, 2)


COUNT = """
import glob, os, tempfile, time, torch, shoal
from torch.utils.data import DataLoader, TensorDataset

class SampleCounter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = torch.nn.Parameter(torch.zeros(()))
    def forward(self, x):
        return -self.count * len(x)  # plain SGD with rate 1 adds the samples of every batch

run = shoal.start()
model = SampleCounter()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
loader = DataLoader(TensorDataset(torch.zeros(240, 1)), batch_size=4)
model, optimizer, loader = run.join(model, optimizer, loader, loss="sum")
for epoch in run.epochs(2):
    for (x,) in loader:
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=1.0)
        HARM
        time.sleep(0.01)
if run.is_main:
    print("counted", model.count.item())
"""


KILL_WORKER = """if run.worker_id == 1 and run.step == 9 and not os.path.exists('killed'):
            open('killed', 'w').close()
            os.kill(os.getpid(), 9)"""
KILL_SERVERS = """start = {6: 1, 9: 0, 12: 2}.get(run.step)  # the backup, the primary, and the one that took over
        if run.worker_id == 0 and start is not None:
            (found,) = glob.glob(f'{tempfile.gettempdir()}/shoal-servers-*/0-0.{start}.pid')
            os.kill(int(open(found).read()), 9)"""
KILL_BOTH = """if run.worker_id == 0 and run.step == 9 and not os.path.exists('killed'):
            open('killed', 'w').close()
            for found in glob.glob(f'{tempfile.gettempdir()}/shoal-servers-*/0-0.*.pid'):
                os.kill(int(open(found).read()), 9)"""


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("server, async(round=7)", id="async"),
        pytest.param("server, stale(2, round=7)", id="stale"),
        pytest.param("server(shards=2), async(samples=leased, round=7)", id="async, leased"),
        pytest.param("server, stale(2, samples=leased, round=7)", id="stale, leased"),
        pytest.param("server, async(samples=leased, speculate=0.3, round=7)", id="speculative"),
        pytest.param("server, deadline(60, backups=1, round=7)", id="backup workers"),
    ],
)
def test_p1_every_sample_is_in_the_servers_values_once(tmp_path: Path, plan: str) -> None:
    """What the lost worker pushed stays in the sum and is not dealt again; what it did not push is dealt again."""
    (tmp_path / "script.py").write_text(COUNT.replace("HARM", KILL_WORKER))
    words = ("--workers", "3", "--plan", plan, "--name", "one", "--restarts", "0")
    done = command(tmp_path, "run", *words, "script.py").wait(WAIT)
    assert done.code == 0, done.err
    assert "worker 1 was lost (SIGKILL)" in done.err
    assert "counted 480.0" in done.out
    assert_exactly_once(tmp_path, "one", 240, 2)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param("server(shards=2, replicas=2)", id="every step"),
        pytest.param("server(replicas=2), async(speculate=0.3, round=7)", id="async"),
        pytest.param("server(replicas=2), stale(2, samples=leased, round=7)", id="leased", marks=pytest.mark.soak),
    ],
)
def test_p2_what_a_replicated_server_has_acknowledged_survives(tmp_path: Path, plan: str) -> None:
    """Three processes of a server are killed one after the other: nothing is lost or applied twice, nobody stops."""
    (tmp_path / "script.py").write_text(COUNT.replace("HARM", KILL_SERVERS))
    done = command(tmp_path, "run", "--workers", "3", "--plan", plan, "--name", "one", "script.py").wait(WAIT)
    assert done.code == 0, done.err
    assert done.err.count("server 0 died of SIGKILL; its replica took over; another replica was started") == 2
    assert done.err.count("the replica of server 0 died of SIGKILL; another replica was started") == 1
    assert "begins again" not in done.err
    assert "counted 480.0" in done.out
    assert_exactly_once(tmp_path, "one", 240, 2)


@pytest.mark.skipif(bool(missing()), reason="a lab cannot run here")
@pytest.mark.parametrize(
    ("plan", "lab"),
    [
        pytest.param("server(shards=2, replicas=2)", "2 hosts, 100mbit, 1ms", id="every step"),
        pytest.param("server(replicas=2), async(round=7)", "3 hosts, 100mbit, 1ms", id="async, a host of its own"),
    ],
)
def test_p2_between_hosts_a_replica_takes_over(tmp_path: Path, plan: str, lab: str) -> None:
    """It is on another host than the server that is killed. No third process comes."""
    (tmp_path / "script.py").write_text(COUNT.replace("HARM", KILL_SERVERS.replace("{6: 1, 9: 0, 12: 2}", "{9: 0}")))
    words = ("--workers", "2", "--plan", plan, "--name", "one", "--lab", lab)
    done = command(tmp_path, "run", *words, "script.py").wait(WAIT)
    assert done.code == 0, done.err
    assert done.err.count("server 0 died of SIGKILL; its replica took over; it goes on without a replica") == 1
    assert "begins again" not in done.err
    assert "counted 480.0" in done.out
    assert_exactly_once(tmp_path, "one", 240, 2)


@pytest.mark.soak("clock")
@pytest.mark.skipif(bool(missing()), reason="a lab cannot run here")
@pytest.mark.parametrize("plan", ["server(replicas=2), async(round=50)", "server(replicas=2)"])
def test_p2_between_hosts_the_next_step_is_made_within_three_seconds(tmp_path: Path, plan: str) -> None:
    """The longest time between two steps of a worker that trains on when the primary is killed, in three runs."""
    timed = "times.append(time.monotonic())\n        " + KILL_SERVERS.replace("{6: 1, 9: 0, 12: 2}", "{9: 0}")
    text = COUNT.replace("HARM", timed).replace("for epoch in", "times = []\nfor epoch in", 1)
    text += 'print("longest", max(b - a for a, b in zip(times[8:], times[9:])))\n'
    (tmp_path / "script.py").write_text(text)
    for number in range(3):
        words = ("--workers", "2", "--plan", plan, "--name", f"run{number}", "--lab", "3 hosts, 100mbit, 1ms")
        done = command(tmp_path, "run", *words, "script.py").wait(WAIT)
        assert "its replica took over" in done.err
        gaps = [float(gap) for gap in re.findall(r"longest (\S+)", done.out)]
        assert max(gaps) <= 3.0


@pytest.mark.soak
def test_p2_without_a_replica_left_the_run_goes_back_to_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(COUNT.replace("HARM", KILL_BOTH))
    words = ("--workers", "2", "--plan", "server(replicas=2)", "--name", "one", "--checkpoint", "2steps")
    done = command(tmp_path, "run", *words, "script.py").wait(WAIT)
    assert done.code == 0, done.err
    assert "server 0 died of SIGKILL (signal 9); the run begins again at its last checkpoint (1 of 3)" in done.err
    assert "counted 480.0" in done.out


@pytest.mark.soak
def test_p2_after_the_last_replacement_the_one_that_is_left_answers_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(COUNT.replace("HARM", KILL_SERVERS.replace("9: 0, 12: 2", "9: 2")))
    words = ("--workers", "2", "--plan", "server(replicas=2), async", "--name", "one", "--restarts", "1")
    done = command(tmp_path, "run", *words, "script.py").wait(WAIT)
    assert done.code == 0, done.err
    assert "the replica of server 0 died of SIGKILL; it goes on without a replica, which was replaced too" in done.err
    assert "counted 480.0" in done.out


KILL_AGAIN_AND_AGAIN = """if run.worker_id == 0:
            times.append(time.monotonic())
            if run.step == 1:
                threading.Thread(target=kill, daemon=True).start()"""
KILLER = """
import random, threading
times = []

def kill():  # the primary, at any moment after the steps before were acknowledged: its backup has them then
    for start in range(20):
        step = run.step
        while run.step < step + 3:
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.05))
        (found,) = glob.glob(f'{tempfile.gettempdir()}/shoal-servers-*/0-0.{start}.pid')
        os.kill(int(open(found).read()), 9)
"""


@pytest.mark.soak("clock")
@pytest.mark.parametrize("plan", ["server(replicas=2), async(round=50)", "server(replicas=2)"])
def test_p2_twenty_takeovers_take_less_than_three_seconds_each(tmp_path: Path, plan: str) -> None:
    source = COUNT.replace("HARM", KILL_AGAIN_AND_AGAIN).replace("run = shoal.start()", KILLER + "run = shoal.start()")
    source = source.replace("zeros(240, 1)", "zeros(4000, 1)")
    (tmp_path / "script.py").write_text(source + "    print('longest', max(b - a for a, b in zip(times, times[1:])))\n")
    words = ("--workers", "2", "--plan", plan, "--name", "one", "--restarts", "20")
    done = command(tmp_path, "run", *words, "script.py").wait(WAIT)
    assert done.code == 0, done.err
    assert done.err.count("its replica took over") == 20
    assert "counted 8000.0" in done.out
    (longest,) = re.findall(r"longest ([\d.]+)", done.out)
    assert float(longest) < 3.0
