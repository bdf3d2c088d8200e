"""`shoal run --listen` and `shoal join`: machines come to a run that trains, and go again."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import forked
import pytest
from forked import Forked, Outcome, children, command, shoal, soon
from own_codec import CODEC, PROJECT, install

from shoal.lab.lab import NetworkLab
from shoal.lab.load import load
from shoal.lab.needs import missing
from shoal.membership.allow_list import invite
from shoal.train.checkpoint.manifest import newest, verify
from shoal.transport.keys import CurveKeyPair

pytestmark = pytest.mark.usefixtures("tidy")

WAIT = 90.0
TRAIN = """
import os, sys, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
loader = DataLoader(TensorDataset(torch.randn(160, 4), torch.randn(160, 2)), batch_size=2, shuffle=True)
model, optimizer, loader = run.join(model, optimizer, loader)
for epoch in run.epochs(150):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
    run.report(over=float(os.path.exists(sys.argv[1])))
print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()), run.is_main)
"""
"""Trains until a file is there: the test says when it has seen enough."""


class Home:
    """The machine a run began on."""

    def __init__(self, folder: Path, *words: str, inside: Callable[[], object], at: str, script: str) -> None:
        self.folder, self.key, self.over = folder / "home", folder / "key", folder / "over"
        self.invited = 0
        self.folder.mkdir()
        self.keys = CurveKeyPair.new()
        self.keys.write(self.key)
        (self.folder / "script.py").write_text(script)
        listen = ("--listen", at, "--key", str(self.key), "--name", "one")
        line = ["run", *listen, *words, "script.py", str(self.over)]
        self.process = Forked(self.folder, lambda: (inside(), forked._command(line)), {"SHOAL_UNTIL": "over>=1"})

    def invite(self, workers: int = 4) -> str:
        """A key file for one machine, made while the run trains."""
        self.invited += 1
        file = self.key.with_name(f"invitation-{self.invited}")
        invite(self.key, file, workers)
        return str(file)

    @property
    def address(self) -> str:
        return self.said.partition("shoal join ")[2].split()[0]

    @property
    def said(self) -> str:
        return said(self.process)

    def heard(self, text: str) -> None:
        assert soon(WAIT, lambda: text in self.said or self.process.pid not in children()), self.said
        assert text in self.said

    def trained(self, slot: int) -> None:
        assert soon(WAIT, lambda: steps(self.folder, "one", slot) > 3), self.said

    def end(self, *guests: Forked) -> list[Outcome]:
        """Training is enough: all come to their end, with the same model, and every sample counted once."""
        self.over.touch()
        outcomes = [process.wait(WAIT) for process in (self.process, *guests)]
        assert [outcome.code for outcome in outcomes] == [0] * len(outcomes), [o.err for o in outcomes]
        lines = [line for outcome in outcomes for line in outcome.out.splitlines() if "checksum" in line]
        sums = [line[line.index("checksum") :].rpartition(" ") for line in lines]
        assert len({values for values, _, _ in sums}) == 1, f"replicas differ: {lines}"
        assert [main for _, _, main in sums].count("True") == 1
        self.check_ledger()
        return outcomes

    def check_ledger(self) -> None:
        ledger = shoal(self.folder, "show", "one", "--ledger", "--json").json["epochs"]
        assert ledger, "no epoch was made"
        for row in ledger:
            assert {"samples": 160, "missing": 0, "duplicate": 0, "finished": True}.items() <= row.items(), row


@contextmanager
def home(
    folder: Path,
    *words: str,
    inside: Callable[[], object] = lambda: None,
    at: str = "127.0.0.1:0",
    script: str = TRAIN,
) -> Iterator[Home]:
    """`inside`: go somewhere before the command is given; `at`: where to listen."""
    here = Home(folder, *words, inside=inside, at=at, script=script)
    try:
        here.heard("others may join")
        here.trained(0)
        yield here
    finally:
        stop(here.process)


def said(process: Forked) -> str:
    return process.err.read_text() if process.err.exists() else ""


def stop(process: Forked) -> None:
    """Whatever the test came to."""
    if process.pid in children():
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30.0)


def events(folder: Path, run: str, slot: int) -> list[dict[str, object]]:
    path = folder / f"runs/{run}/worker-{slot}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps(folder: Path, run: str, slot: int) -> int:
    """Since the worker in a slot was started last."""
    kinds = [event["event"] for event in events(folder, run, slot)]
    last = len(kinds) - kinds[::-1].index("started") if "started" in kinds else len(kinds)
    return kinds[last:].count("step")


def pids(folder: Path, run: str, slot: int) -> list[int]:
    """Of the workers in a slot, one after the other."""
    return [int(str(event["pid"])) for event in events(folder, run, slot) if event["event"] == "started"]


def joined(folder: Path, here: Home, *words: str) -> Forked:
    """Another machine, with a folder of its own."""
    folder.mkdir(exist_ok=True)
    key = () if "--key" in words else ("--key", here.invite())
    return command(folder, "join", here.address, "--yes", *key, *words)


def lose_one(there: Path, guest: Forked, slot: int) -> None:
    """Both workers of a joined machine train; the one of this slot is killed, and another takes its place."""
    for each in (1, 2):
        trained(there, "one", each, guest)
    before = pids(there, "one", slot)
    os.kill(before[-1], signal.SIGKILL)
    assert soon(WAIT, lambda: len(pids(there, "one", slot)) > len(before)), said(guest)
    trained(there, "one", slot, guest)


def trained(folder: Path, run: str, slot: int, process: Forked) -> None:
    assert soon(WAIT, lambda: steps(folder, run, slot) > 3), said(process)


def test_a_machine_joins_and_loses_a_worker_and_all_end_alike(tmp_path: Path) -> None:
    with home(tmp_path, "--workers", "1", "--checkpoint", "20steps") as here:
        there = tmp_path / "there"
        guest = joined(there, here, "--workers", "2")
        lose_one(there, guest, 2)
        outcomes = here.end(guest)
    assert "worker 2 was lost (SIGKILL)" in outcomes[1].err
    assert "it is started again (" in outcomes[1].err
    assert "the training of one is over" in outcomes[1].err
    assert "worker 1 joined from" in outcomes[0].err
    kept, passed_over = newest(here.folder / "runs/one", "one")
    assert kept is not None
    assert not passed_over
    assert verify(kept).workers == 1, "guests put nothing into a checkpoint"
    assert not list(there.glob("runs/one/checkpoints")) + list(there.glob("runs/one/*ledger*"))
    assert (there / "runs/one/script/script.py").read_text() == TRAIN


def test_a_worker_elsewhere_that_ends_with_another_model_is_named_and_harms_nobody(tmp_path: Path) -> None:
    odd = "if run.worker_id == 1:\n    model[0].weight.data.add_(1.0)\n"
    script = TRAIN.replace("print(", odd + "print(")
    with home(tmp_path, "--workers", "1", script=script) as here:
        there = tmp_path / "there"
        guest = joined(there, here, "--workers", "1")
        trained(there, "one", 1, guest)
        here.over.touch()
        outcome = here.process.wait(WAIT)
        assert guest.wait(WAIT).code == 0
    assert outcome.code == 0, outcome.err
    assert "warning: at the end worker 1, of another machine, holds other parameters" in outcome.err


def test_a_machine_needs_the_package_of_the_plans_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, there = tmp_path / "site", tmp_path / "there"
    site.mkdir()
    install(site, "shoal_sign", CODEC, PROJECT)
    plan = ("--workers", "1", "--plan", "sign, by_size(0)")
    with home(tmp_path, *plan, inside=lambda: sys.path.insert(0, str(site))) as here:
        refused = joined(there, here).wait(WAIT)
        assert refused.code == 2
        assert "term 'sign' is in package 'shoal-sign 1.0', which this machine lacks; install it" in refused.err
        assert not (there / "runs").exists(), "nothing was executed"
        monkeypatch.syspath_prepend(site)
        guest = joined(there, here)
        trained(there, "one", 1, guest)
        here.end(guest)


FACTORS = TRAIN.replace(
    "    for x, y in loader:",
    """    for x, y in loader:
        import hashlib
        shared = run._together.joined[0].exchange.shared()
        words = b"".join(shared[name].numpy().tobytes() for name in sorted(shared))
        slot, step = run.worker_id, run.step
        with open(os.path.join(os.path.dirname(sys.argv[1]), f"factors-{slot}"), "a") as file:
            file.write(f"{step} {hashlib.sha256(words).hexdigest()} {len(words)}\\n")""",
)
"""Notes before every step what all exchanges remember alike."""


def factors(folder: Path, slot: int) -> dict[int, list[str]]:
    lines = (folder / f"factors-{slot}").read_text().splitlines()
    return {int(step): rest for step, *rest in map(str.split, lines)}


def test_who_joins_knows_the_factors_of_lowrank_to_the_bit(tmp_path: Path) -> None:
    with home(tmp_path, "--workers", "2", "--plan", "lowrank(1)", script=FACTORS) as here:
        there = tmp_path / "there"
        guest = joined(there, here)
        trained(there, "one", 2, guest)
        here.end(guest)
    first, second, came = (factors(tmp_path, slot) for slot in range(3))
    assert min(came) > 3, "it came when the others had factors of their own"
    assert len({digest for digest, _ in first.values()}) > 3
    assert all(int(size) > 0 for _, size in came.values())
    for other in (second, came):
        both = first.keys() & other.keys()
        assert min(other) in both
        assert {step: first[step] for step in both} == {step: other[step] for step in both}


def sent(folder: Path, run: str, slot: int) -> list[object]:
    """Bytes of every step of the worker in a slot on sockets, for sums."""
    return [event["wire"] for event in events(folder, run, slot) if event["event"] == "step"]


@pytest.mark.parametrize("plan", ["allreduce", "server(shards=2)"])
def test_one_worker_speaks_for_each_machine_whoever_is_lost(tmp_path: Path, plan: str) -> None:
    """Workers of a machine add up in its memory; the first of those that are left sends the sum, once for the machine
    however many they are (row 19)."""
    with home(tmp_path, "--workers", "2", "--plan", plan) as here:
        there = tmp_path / "there"
        guest = joined(there, here, "--workers", "2")
        for slot in (2, 3):
            trained(there, "one", slot, guest)
        before = pids(here.folder, "one", 0)
        os.kill(before[-1], signal.SIGKILL)  # it has led its machine
        assert soon(WAIT, lambda: len(pids(here.folder, "one", 0)) > len(before)), here.said
        for slot in (0, 1):
            here.trained(slot)
        os.kill(pids(there, "one", 2)[-1], signal.SIGKILL)
        assert soon(WAIT, lambda: len(pids(there, "one", 2)) > 1), said(guest)
        for slot in (2, 3):
            trained(there, "one", slot, guest)
        here.end(guest)
    silent = [all(wire == 0 for wire in sent(folder, "one", slot)[-3:]) for folder, slot in slots_of(here, there)]
    assert sorted(silent[:2]) == sorted(silent[2:]) == [False, True], "one of each machine sends"


def slots_of(here: Home, there: Path) -> list[tuple[Path, int]]:
    return [(here.folder, 0), (here.folder, 1), (there, 2), (there, 3)]


@pytest.mark.soak
def test_machines_join_a_run_that_meets_in_two_stages(tmp_path: Path) -> None:
    """Shares are cut for one worker, for three, for two when one is lost, and for three again."""
    plan = "onebit, by_size(0), meet(twostage)"
    with home(tmp_path, "--workers", "1", "--plan", plan, "--checkpoint", "20steps") as here:
        there = tmp_path / "there"
        guest = joined(there, here, "--workers", "2")
        lose_one(there, guest, 1)
        outcomes = here.end(guest)
    assert "worker 1 was lost (SIGKILL)" in outcomes[1].err


@pytest.mark.soak
def test_machines_leave_and_are_lost_and_come_again(tmp_path: Path) -> None:
    own = CurveKeyPair.new()
    own.write(tmp_path / "own")
    with home(tmp_path, "--workers", "2", "--allow", own.public.decode()) as here:
        there = tmp_path / "there"
        first = joined(there, here)
        trained(there, "one", 2, first)
        os.kill(first.pid, signal.SIGTERM)
        left = first.wait(WAIT)
        assert left.code == 0, left.err
        assert "shoal: left one after" in left.err
        here.heard("has left; the others go on")
        words = ("--key", str(tmp_path / "own"), "--server", here.keys.public.decode())
        second = joined(there, here, *words)  # the name of its folder is taken now
        trained(there, "one-2", 3, second)
        os.kill(second.pid, signal.SIGKILL)  # its workers die with it
        assert second.wait(WAIT).code == -signal.SIGKILL
        here.heard("worker 3 of")
        here.end()
    assert "was lost" in here.said


@pytest.mark.soak
def test_a_run_that_is_stopped_tells_its_guests_and_goes_on_without_them(tmp_path: Path) -> None:
    there = tmp_path / "there"
    with home(tmp_path, "--workers", "1", "--checkpoint", "10steps") as here:
        guest = joined(there, here)
        trained(there, "one", 1, guest)
        os.kill(here.process.pid, signal.SIGTERM)
        assert here.process.wait(WAIT).code == 130, here.said
        outcome = guest.wait(WAIT)
    assert outcome.code == 1, outcome.err
    assert re.search("shoal: the run .*was stopped.* where it began", outcome.err), outcome.err
    kept, _ = newest(here.folder / "runs/one", "one")
    assert kept is not None
    assert verify(kept).workers == 1
    here.over.touch()
    words = ("run", "--resume", "one", "--workers", "2", "--checkpoint", "auto")
    resumed = command(here.folder, *words, SHOAL_UNTIL="over>=1").wait(WAIT)
    assert resumed.code == 0, resumed.err
    here.check_ledger()


def test_a5_a_run_listens_only_with_a_key_and_where_it_can(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    keys = CurveKeyPair.new()
    keys.write(tmp_path / "key")
    invite(tmp_path / "key", tmp_path / "invitation")
    (tmp_path / "large.py").write_text("#" * (1 << 20) + "\n")
    public = "a" * 40
    here = ("--listen", "127.0.0.1:0")
    cases = {
        (*here, "script.py"): "there is no key; make one with shoal keys new FILE",
        ("--key", "key", "script.py"): "say where with --listen",
        ("--listen", "127.0.0.1", "--key", "key", "script.py"): "write HOST:PORT",
        ("--listen", "203.0.113.1:7700", "--key", "key", "script.py"): "give an address of this machine",
        ("--listen", "0:7700", "--key", "key", "script.py"): "no single address",
        (*here, "--key", "key", "--lab", "2 hosts", "script.py"): "drop one of the two",
        (*here, "--key", "key", "--trusted", "script.py"): "drop --trusted",
        (*here, "--key", "key", "--plan", "alone", "script.py"): "use allreduce",
        (*here, "--key", "key", "--allow", f"{public}=0", "script.py"): "=K for K workers",
        (*here, "--key", "key", "--allow", public[1:], "script.py"): "is no key",
        (*here, "--key", "invitation", "script.py"): "is an invitation to join another machine's run",
        (*here, "--key", "key", "--allow", keys.public.decode(), "script.py"): "is the run's own key",
        (*here, "--key", "key", "large.py"): "with --listen a script may have 1048576",
    }
    for words, text in cases.items():
        outcome = shoal(tmp_path, "run", *words)
        assert outcome.code == 2, (words, outcome.err)
        assert text in outcome.err, outcome.err
        assert outcome.err.splitlines()[-1].startswith("shoal: ")
    assert not (tmp_path / "runs").exists(), "nothing was begun"


@pytest.mark.skipif(bool(missing()), reason="a lab cannot run here")
def test_a_host_joins_another_over_a_network(tmp_path: Path) -> None:
    with NetworkLab(load("2 hosts, 100mbit, 2ms")) as lab:
        address = lab.hosts[0].address
        with home(tmp_path, "--workers", "1", inside=lambda: lab.enter(0), at=f"{address}:7700") as here:
            assert here.address == f"{address}:7700"
            there = tmp_path / "there"
            there.mkdir()
            words = ["join", here.address, "--yes", "--key", here.invite()]
            guest = Forked(there, lambda: (lab.enter(1), forked._command(words)))
            trained(there, "one", 1, guest)
            outcomes = here.end(guest)
    assert "worker 1 joined from" in outcomes[0].err
