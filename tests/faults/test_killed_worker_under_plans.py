"""P1 where an exchange takes two rounds, decides something, or is one of several: a killed worker is replaced."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import test_network_members_change as lab
from forked import Forked, soon
from test_killed_or_frozen_worker import disturbed, kill

from shoal.lab.needs import missing
from shoal.sync.exchange import auto
from shoal.sync.price import CodecChoice

pytestmark = pytest.mark.timeout(300)
in_a_lab = pytest.mark.skipif(bool(missing()), reason="a lab cannot run here")


def events(folder: Path, slot: int, kind: str) -> list[dict[str, Any]]:
    lines = (folder / f"runs/one/worker-{slot}.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_p1_two_rounds_of_sums(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), "--plan", "lowrank(1)")
    assert "worker 1 was lost (SIGKILL)" in err


def test_p1_unequal_shares(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), "--share", "3,1,2")
    assert "worker 1 was lost (SIGKILL)" in err


@pytest.mark.soak
def test_p1_parts_with_plans_of_their_own(tmp_path: Path) -> None:
    plan = "0.*: topk(0.2), by_size(0); *.bias: onebit, meet(twostage), by_size(0); *: lowrank(1)"
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), "--plan", plan)
    assert "worker 1 was lost (SIGKILL)" in err


@pytest.mark.soak
def test_p1_factors_of_linear_layers(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), "--plan", "factors(batch=2)")
    assert "worker 1 was lost (SIGKILL)" in err


@pytest.mark.soak
@in_a_lab
def test_p1_two_rounds_of_sums_between_hosts(tmp_path: Path) -> None:
    def lose(running: Forked) -> None:
        os.kill(lab.pid(tmp_path, 1), signal.SIGKILL)
        lab.whole(tmp_path, running)

    err = lab.train(tmp_path, "", lose, "--plan", "lowrank(1)")
    assert "worker 1 was lost (SIGKILL)" in err


@pytest.mark.soak
def test_p1_two_stages(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), "--plan", "onebit, by_size(0), meet(twostage)")
    assert "worker 1 was lost (SIGKILL)" in err


@pytest.mark.soak
def test_p1_two_stages_without_worker_0(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 0), "--plan", "onebit, by_size(0), meet(twostage)")
    assert "worker 0 was lost (SIGKILL)" in err


BETWEEN = """run = shoal.start()
from shoal.sync.aggregate.two_stage import TwoStageAggregator
def turn(self, index, whole=TwoStageAggregator._post_share_sum):
    if AFTER:
        whole(self, index)
    if run.worker_id == 1 and run.step == 12 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), 9)
    if not AFTER:
        whole(self, index)
TwoStageAggregator._post_share_sum = turn
"""
"""A worker dies when all payloads of its share have come, or when its sum of them has left."""


@pytest.mark.soak
@pytest.mark.parametrize("after", [False, True], ids=["before its sum", "after its sum"])
def test_p1_lost_between_two_stages(tmp_path: Path, after: bool) -> None:
    def edit(text: str) -> str:
        return text.replace("run = shoal.start()\n", BETWEEN.replace("AFTER", str(after)))

    def killed(_: Forked) -> None:
        assert soon(90.0, (tmp_path / "killed").exists)
        assert soon(90.0, lambda: len(events(tmp_path, 1, "started")) == 2)

    plan = "onebit, by_size(0), meet(twostage)"
    assert "worker 1 was lost (SIGKILL)" in disturbed(tmp_path, killed, "--plan", plan, edit=edit)


@pytest.mark.soak
@in_a_lab
@pytest.mark.parametrize("slot", [0, 1])
def test_p1_two_stages_that_the_hosts_have_chosen(tmp_path: Path, slot: int) -> None:
    """The two that are left gather, and with the newcomer they meet in two stages again."""

    def lose(running: Forked) -> None:
        os.kill(lab.pid(tmp_path, slot), signal.SIGKILL)
        lab.whole(tmp_path, running)

    err = lab.train(tmp_path, "", lose, "--plan", "int8, by_size(0)", load=20000)
    assert f"worker {slot} was lost (SIGKILL)" in err
    ways = [[event["meets"] for event in events(tmp_path, n, "buckets")] for n in range(3)]
    assert all(way[-1] == "twostage" for way in ways), ways


@pytest.mark.soak
def test_p1_all_go_on_with_the_same_guard(tmp_path: Path) -> None:
    """Whoever is there in a step says the same of it; a newcomer begins with the ratio of the others."""
    plan = "topk(0.1), by_size(0), guard(1.0, every=4)"
    assert "worker 1 was lost (SIGKILL)" in disturbed(tmp_path, lambda _: kill(tmp_path, 1), "--plan", plan)
    said = [
        {e["step"]: (e["cosine"], e["action"], e["ratio"]) for e in events(tmp_path, n, "guarded")} for n in range(3)
    ]
    assert said[0] == said[2]
    # where it was short of samples, it says so with its next step
    common = [step for step in said[1] if step > 8 and step in said[0]]
    assert len(common) > 4
    assert {step: said[0][step] for step in common} == {step: said[1][step] for step in common}
    assert max(ratio for _, _, ratio in said[1].values()) > 0.1


def twice(text: str) -> str:
    """Two models, joined one after the other, and one backward pass through both."""
    whole = "model, optimizer, loader = run.join(model, optimizer, loader)"
    parts = """head, tail = model[:2], model[2:]
other = torch.optim.SGD(tail.parameters(), lr=0.05)
optimizer = torch.optim.AdamW(head.parameters(), lr=0.02)
head, optimizer = run.join(head, optimizer)
tail, other, loader = run.join(tail, other, loader)"""
    assert whole in text
    text = text.replace(whole, parts).replace("optimizer.step()", "optimizer.step(); other.step()")
    return text.replace("optimizer.zero_grad()", "optimizer.zero_grad(); other.zero_grad()")


@pytest.mark.soak
def test_p1_a_script_that_joins_twice(tmp_path: Path) -> None:
    assert "worker 1 was lost (SIGKILL)" in disturbed(tmp_path, lambda _: kill(tmp_path, 1), edit=twice)


@pytest.mark.soak
def test_p1_worker_0_of_a_script_that_joins_twice(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 0), "--plan", "lowrank(1)", edit=twice)
    assert "worker 0 was lost (SIGKILL)" in err


KILLED = """time.sleep(0.05)
        if run.worker_id == 1 and run.step == AT and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), 9)"""


@pytest.mark.soak
@in_a_lab
@pytest.mark.parametrize("at", [20, 4], ids=["chosen", "measuring"])
def test_p1_a_codec_that_the_run_has_chosen(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer takes the choice over; before there is one, all measure anew, and again with the newcomer."""
    monkeypatch.setattr(auto, "choose_codec", lambda *_: CodecChoice("int8(1024)", "the test says so", {"": 1.0}))
    each = KILLED.replace("AT", str(at))
    err = lab.train(tmp_path, "", partial(lab.whole, tmp_path), "--plan", "wire(auto)", each=each)
    assert "worker 1 was lost (SIGKILL)" in err
    chosen = [[(e["step"], e["codec"]) for e in events(tmp_path, slot, "chosen")] for slot in range(3)]
    assert len(chosen[0]) == 1
    assert chosen[0] == chosen[2]
    assert (chosen[0][0][0] > 8) == (at < 8)
    assert chosen[1] in ([], chosen[0])
    last = [event["codec"] for slot in range(3) for event in events(tmp_path, slot, "buckets")[-1:]]
    assert last == ["int8(1024)"] * 3
