"""`shoal run --lab`: workers on emulated hosts."""

import os

import forked
import pytest

from shoal.lab.needs import missing
from shoal.watch.record import RunRecord, resolve

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason="; ".join(missing())),
    pytest.mark.usefixtures("tidy"),
]

EVENTS = """
hosts = 2
seed = SEED
rate = "200mbit"
delay = "1ms"
[[event]]
at = "step 2"
host = 1
rate = "50mbit"
[[event]]
at = "step 5"
host = 0
duplicate = 0.05
""" + "".join(f'[[event]]\nat = "step {step}"\nhost = 1\nloss = 0.00{step}\nchance = 0.5\n' for step in range(1, 6))


def orphans() -> list[str]:
    """Namespaces whose lab's process is gone; others may be making labs at the same time."""
    names = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    return [name for name in names if name.startswith("shoal-") and not os.path.exists(f"/proc/{name.split('-')[1]}")]


def happened(tmp_path, name):
    record = RunRecord.open(resolve(tmp_path / "runs", name))
    return [(event.text, event.planned, event.step) for event in record.happenings()]


def test_the_network_is_used_and_the_result_is_the_same(tmp_path):
    here = forked.train(tmp_path, forked.TRAIN, "--workers", "2", "--json")
    there = forked.train(tmp_path, forked.TRAIN, "--lab", "2 hosts, 100mbit, 1ms", "--json")
    assert (here.code, there.code) == (0, 0), there.err
    assert there.json["workers"] == 2
    assert there.json["bytes_wire"] > here.json["bytes_wire"] == 0
    assert there.checksum == here.checksum
    assert forked.soon(30.0, lambda: not orphans())


def test_the_way_of_a_sum_is_chosen_by_the_clock_and_changes_no_bit(tmp_path):
    script = forked.TRAIN.replace("nn.Linear(4, 2)", "nn.Sequential(nn.Linear(4, 2500), nn.Linear(2500, 2))")
    script = script.replace("lr=0.1", "lr=0.001").replace(".6f", ".9e").replace("epochs(2)", "epochs(5)")
    tried = forked.train(tmp_path, script, "--lab", "3 hosts, 200mbit")
    ring = forked.train(tmp_path, script, "--lab", "3 hosts, 200mbit", "--plan", "allreduce(ring)")
    assert (tried.code, ring.code) == (0, 0), tried.err + ring.err
    assert tried.checksum == ring.checksum


def test_events_of_steps_come_at_their_steps_every_time(tmp_path):
    for name, seed in (("first", 7), ("second", 7), ("third", 8)):
        (tmp_path / "lab.toml").write_text(EVENTS.replace("SEED", str(seed)))
        done = forked.train(tmp_path, forked.TRAIN, "--lab", "lab.toml", "--name", name)
        assert done.code == 0, done.err
    first, second, third = (happened(tmp_path, name) for name in ("first", "second", "third"))
    assert first == second
    assert first != third, "the seed decides what is left to chance"
    for events in (first, third):
        assert {("step 2", 2), ("step 5", 5)} <= {(planned, step) for _, planned, step in events}
        assert all(planned == f"step {step}" for _, planned, step in events)
    assert "50mbit" in forked.shoal(tmp_path, "show", "first").out


def test_a_host_that_is_killed_ends_the_run_by_name(tmp_path):
    (tmp_path / "lab.toml").write_text('hosts = 2\n[[event]]\nat = "step 2"\nkill = 1\n')
    done = forked.train(tmp_path, forked.TRAIN, "--lab", "lab.toml", "--restarts", "0", "--min-workers", "2")
    assert done.code == 1
    assert "worker 1 died of SIGKILL" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lab", "2 hosts, 10mbit", "--workers", "3"], "more than the lab's 2 hosts"),
        (["--lab", "2 hosts, 10mbti"], "10mbti"),
        (["--lab", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_lab_that_cannot_be_is_refused(tmp_path, words, said):
    done = forked.train(tmp_path, forked.TRAIN, *words)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_slow_host_is_noted_in_the_record(tmp_path):
    (tmp_path / "lab.toml").write_text("hosts = 2\n[host.1]\nspeed = 0.5\n")
    assert forked.train(tmp_path, forked.TRAIN, "--lab", "lab.toml", "--name", "slow").code == 0
    assert any("host 1 computes at speed 0.5 by" in text for text, _, _ in happened(tmp_path, "slow"))


def test_replayed_hosts_send_as_much_as_computing_ones(tmp_path):
    def train(compute):
        (tmp_path / "lab.toml").write_text(f'hosts = 2\ncompute = "{compute}"\n')
        done = forked.train(tmp_path, forked.TRAIN.replace("range(2)", "range(4)"), "--lab", "lab.toml", "--json")
        assert done.code == 0, done.err
        return done.json

    real, replayed = train("real"), train("replay")
    for key in ("steps", "samples", "bytes_raw", "bytes_sent", "bytes_wire"):
        assert replayed[key] == real[key]


def test_order_and_a_limited_bandwidth_between_hosts(tmp_path):
    """`show` says what was hidden."""
    words = ("--lab", "2 hosts, 100mbit", "--plan", "tictac", "--bandwidth", "20mbit", "--name", "needed")
    done = forked.train(tmp_path, forked.TRAIN, *words)
    assert done.code == 0, done.err
    assert "there a loss takes the run back to its last checkpoint" in done.err
    assert "hidden behind computing" in forked.shoal(tmp_path, "show", "needed").out


def test_a_host_that_is_killed_under_order_needed_takes_the_run_back(tmp_path):
    """Once: the kill is not done again. Every sample still counts once."""
    (tmp_path / "lab.toml").write_text('hosts = 2\n[[event]]\nat = "step 2"\nkill = 1\n')
    words = ("--lab", "lab.toml", "--plan", "order(needed)", "--name", "one", "--checkpoint", "1steps", "--json")
    done = forked.train(tmp_path, forked.TRAIN, *words)
    assert done.code == 0, done.err
    assert "worker 1 died of SIGKILL (signal 9); the run begins again at its last checkpoint (1 of 3)" in done.err
    assert done.json["losses"] == 1
    ledger = forked.shoal(tmp_path, "show", "one", "--ledger", "--json").json["epochs"]
    assert [(each["samples"], each["missing"], each["duplicate"]) for each in ledger] == [(24, 0, 0)] * 2
