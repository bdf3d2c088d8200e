"""A machine joins over a slow link while the others train: most of the state is streamed to it before it enters."""

import os
import signal
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import forked
import msgspec
import pytest
from forked import Forked, soon
from test_join_machines import TRAIN, WAIT, Home, events, home, pids, said, trained

from shoal.lab.lab import NetworkLab
from shoal.lab.load import load
from shoal.lab.needs import missing

pytestmark = [pytest.mark.usefixtures("tidy"), pytest.mark.skipif(bool(missing()), reason="a lab cannot run here")]

LARGE = (
    TRAIN.replace("nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2)", "nn.Linear(4, 700), nn.Linear(700, 700)")
    .replace(
        "torch.optim.AdamW(model.parameters(), lr=0.02)", "torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)"
    )
    .replace("torch.randn(160, 2)", "torch.randn(160, 700)")
    .replace("optimizer.step()", "nn.utils.clip_grad_norm_(model.parameters(), 0.5); optimizer.step()")
    .replace("optimizer = torch", "import torch._dynamo\noptimizer = torch")
)
"""Its state has 4 MB: 1.6 s on a link of 20 Mbit/s."""


@contextmanager
def joining(
    folder: Path, plan: str, rate: str = "20mbit", script: str = LARGE, speed: float = 1.0
) -> Iterator[tuple[Home, Path, Forked]]:
    """A run of two workers on one host, and a machine of that speed that is about to join it over a slow link."""
    spec = load(f"2 hosts, {rate}, 2ms")
    hosts = (spec.hosts[0], msgspec.structs.replace(spec.hosts[1], speed=speed))
    with NetworkLab(msgspec.structs.replace(spec, hosts=hosts)) as lab:
        at = f"{lab.hosts[0].address}:7700"
        words = ("--workers", "2", "--plan", plan)
        with home(folder, *words, inside=lambda: lab.enter(0), at=at, script=script) as here:
            there = folder / "there"
            there.mkdir()
            line = ["join", here.address, "--yes", "--key", here.invite()]
            yield here, there, Forked(there, lambda: (lab.enter(1), forked._command(line)))


def entered(folder: Path, slot: int) -> list[dict[str, object]]:
    return [event for event in events(folder, "one", slot) if event["event"] == "entered"]


@pytest.mark.parametrize(
    "plan", ["topk(0.001)", *(pytest.param(p, marks=pytest.mark.soak) for p in ("onebit", "allreduce"))]
)
def test_the_others_train_while_a_newcomer_takes_over_their_state(tmp_path: Path, plan: str) -> None:
    """Signs of two workers have four sums in each block, so two bits an element. Where the others exchange in memory,
    the link is free for whole gradients."""
    with joining(tmp_path, plan, "1gbit" if plan == "allreduce" else "20mbit") as (here, there, guest):
        trained(there, "one", 2, guest)
        here.end(guest)
    (came,) = entered(there, 2)
    assert came["why"] == "", came
    assert int(str(came["lent"])) > 3_900_000
    assert int(str(came["updates"])) >= 5, "the others trained meanwhile"
    assert int(str(came["given"])) < (400_000 if "topk" in plan else 3_940_000), "they waited for a part of it"
    page = forked.shoal(there, "show", "one").out
    assert "were streamed while the others trained" in " ".join(page.split())


def waits(there: Path, guest: Forked) -> None:
    """Its worker has begun, and its state is on the way."""
    assert soon(WAIT, lambda: bool(pids(there, "one", 2))), said(guest)
    assert not soon(0.8, lambda: bool(entered(there, 2))), "it is too fast for this test"


@pytest.mark.soak
@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_p5_either_side_of_a_stream_is_lost(tmp_path: Path, who: str) -> None:
    with joining(tmp_path, "topk(0.001)") as (here, there, guest):
        waits(there, guest)
        slot: tuple[Path, int] = (here.folder, 0) if who == "sender" else (there, 2)
        lost = pids(slot[0], "one", slot[1])[-1]
        os.kill(lost, signal.SIGKILL)
        back: Callable[[], bool] = lambda: pids(slot[0], "one", slot[1])[-1] != lost  # noqa: E731
        assert soon(WAIT, back), here.said
        trained(there, "one", 2, guest)
        here.trained(0)
        here.end(guest)
    (came,) = entered(there, 2)
    # streamed by another; or given whole, where the sender died between its proof and the newcomer's view
    assert came["lent"] or int(str(came["given"])) > 3_900_000


@pytest.mark.soak
@pytest.mark.parametrize(("weights", "why", "starts"), [
    ("p", "something but the optimizer changes the weights", 1),
    ("p.data", "was lost right after the state was streamed to it", 2),
])  # fmt: skip
def test_a_script_that_changes_weights_itself_gets_newcomers_all_the_same(
    tmp_path: Path, weights: str, why: str, starts: int
) -> None:
    """After every epoch; torch does not count what is written through `data`."""
    change = f"    with torch.no_grad(): [{weights}.mul_(0.999) for p in model.parameters()]\n    run.report("
    script = LARGE.replace("    run.report(", change)
    with joining(tmp_path, "topk(0.001)", script=script) as (here, there, guest):
        trained(there, "one", 2, guest)
        here.end(guest)
    (came,) = entered(there, 2)
    assert why in str(came["why"])
    assert int(str(came["given"])) > 3_900_000
    assert len(pids(there, "one", 2)) == starts


def chosen(folder: Path, slot: int) -> list[tuple[object, object]]:
    return [(event["step"], event["codec"]) for event in events(folder, "one", slot) if event["event"] == "chosen"]


def test_a_run_chooses_a_codec_when_it_comes_to_cross_a_slow_link(tmp_path: Path) -> None:
    """On one machine nothing crosses a socket; two of the three then share one, and only one of those speaks for it."""
    with joining(tmp_path, "wire(auto)", "100mbit") as (here, there, guest):
        assert soon(WAIT, lambda: bool(chosen(here.folder, 0))), here.said
        assert [codec for _, codec in chosen(here.folder, 0)] == [""]
        trained(there, "one", 2, guest)
        assert soon(WAIT, lambda: bool(chosen(there, 2))), said(guest)
        here.end(guest)
    found = [chosen(folder, slot)[-1] for folder, slot in ((here.folder, 0), (here.folder, 1), (there, 2))]
    assert len(set(found)) == 1, found
    assert found[0][1], "two megabytes a step at 100 Mbit/s, and no codec"


def step_seconds(here: Home) -> dict[int, float]:
    """What each step of the run's first worker took, from the end of the one before."""
    steps = [(int(str(e["step"])), float(str(e["at"]))) for e in events(here.folder, "one", 0) if e["event"] == "step"]
    return {number: at - before for (_, before), (number, at) in pairwise(steps)}


@pytest.mark.soak("clock")
def test_a_newcomer_on_a_very_slow_machine_holds_nobody(tmp_path: Path) -> None:
    """It builds, receives and compares with a twentieth of a processor, while the others train. Its stream falls
    behind and is withdrawn, so all of the state goes to it in one step, and the link needs 1.6 s for that.
    """
    with joining(tmp_path, "allreduce", speed=0.05) as (here, there, guest):
        assert soon(6 * WAIT, lambda: bool(entered(there, 2))), said(guest)
        first = int(str(entered(there, 2)[0]["step"]))
        assert soon(WAIT, lambda: max(step_seconds(here)) > first + 4), here.said
        took = step_seconds(here)
        here.end(guest)
    with_it = statistics.median(took[step] for step in took if step > first)
    before = max(took[step] for step in took if step < first)
    assert before < 1.5, "nobody waited for it before it entered"
    assert took[first] < with_it + 1.6 + 3.0, "and then for the link, and for a step of its own"
