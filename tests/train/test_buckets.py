"""What a run's record says of its buckets: on real workers, by presence, sums and signs."""

import dataclasses
import json
from pathlib import Path

import forked
import pytest
import torch
from by_links import by_files
from loops import data, loader, loss_of
from torch import nn

from shoal.core.events import BucketTimes, CodecPriced, StepFinished
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.watch.exchanged import ExchangeTotals, add_buckets
from shoal.watch.tail import JournalTail
from shoal.wire import kernels

kernels.warm()  # once here instead of once in every worker
PLANS = ["", "fp16", "onebit", "topk(0.1)", "lowrank(1)", "onebit, meet(twostage)"]


class Net(nn.Module):
    """Two matrices, a norm with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Linear(40, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(self.first(x)).tanh())
        return out


def check(events: list[object], plan: str, gradient: int, steps: int) -> ExchangeTotals:
    known: list[ExchangeTotals] = []
    for event in events:  # one, or several if the machine is slow
        if isinstance(event, BucketTimes):
            add_buckets(known, event)
    (found,) = known
    made = [event for event in events if isinstance(event, StepFinished)]
    assert 0 < found.measured <= steps
    assert {name for bucket in found.buckets for name in bucket.layers} == {n for n, _ in Net().named_parameters()}
    assert found.total("raw") == made[1].raw == gradient
    assert sum(b.sent for b in found.buckets) == pytest.approx(sum(s.sent for s in made[1:]) / (steps - 1), rel=0.4)
    for bucket in found.buckets:
        assert min(bucket.encode, bucket.transfer, bucket.wait, bucket.decode, bucket.gradient) >= 0
        assert 0.0 <= bucket.hidden <= 1.0
    assert sum(b.encode + b.decode for b in found.buckets) > 0
    assert found.span <= found.total("transfer") + 1e-4
    assert (sum(b.residual for b in found.buckets) > 0) == any(w in plan for w in ("onebit", "topk", "lowrank"))
    assert bool(found.codec) == bool(plan)
    assert found.step_seconds > 0
    return found


@pytest.mark.parametrize("links", [False, True])
def test_every_plan_leaves_figures_that_add_up(links: bool) -> None:
    def body(world: WorkerWorld) -> Result:
        if links:
            world = dataclasses.replace(world, group=by_files(world))
        runs = []
        for number, plan in enumerate(PLANS):
            torch.manual_seed(3)
            run, model = world.start(plan, name=f"run{number}"), Net()
            model, optimizer, batches = run.join(
                model, torch.optim.SGD(model.parameters(), lr=0.05), loader(2, data(32))
            )
            for _ in range(2):
                for x, y in batches:
                    loss_of(model, x, y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            runs.append((plan, run))
        gradient = 4 * (sum(p.numel() for p in Net().parameters()) + 80)  # and the statistics of the norm
        for plan, run in runs:
            run.close()
            events: list[object] = list(JournalTail(run.dir / f"worker-{run.rank}.jsonl").read())
            found = check(events, plan, gradient, 8)
            assert (sum(bucket.wire for bucket in found.buckets) > 0) == links
            assert found.meets == {"onebit": "gather", "topk(0.1)": "gather", PLANS[-1]: "twostage"}.get(plan, "sum")
            assert (found.rtt is not None) == links
            priced = {event.codec: event for event in events if isinstance(event, CodecPriced)}
            assert set(priced) == ({"", "fp16"} if run.rank == 0 else set())
            if priced:
                assert priced["fp16"].wire * 2 == priced[""].wire
                assert (priced[""].wire > 0) == links
        return {}

    run_world(2, body, seconds=110)


def test_show_says_what_the_codec_came_to(tmp_path: Path) -> None:
    done = forked.train(tmp_path, forked.TRAIN, "-w", "2", "--plan", "onebit, by_size(0)", "--name", "one", "--quiet")
    assert done.code == 0, done.err
    shown = forked.shoal(tmp_path, "show", "one", "--json").json
    assert shown["verdict"]["codec"] == "onebit(2048), by_size(0)"
    assert not shown["verdict"]["wired"]
    (exchange,) = shown["workers"][0]["exchanges"]
    assert sum(bucket["raw"] for bucket in exchange["buckets"]) == 40
    drawn = forked.shoal(tmp_path, "show", "one").out
    assert shown["verdict"]["words"][0][:60] in " ".join(drawn.split())
    assert json.dumps(shown)  # nothing in it that JSON lacks
