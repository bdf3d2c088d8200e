"""The synchronizer of docs/extend.md, word for word: installed as a package, explained, refused and trained with."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from forked import TRAIN, shoal, train
from own_codec import SYNCHRONIZER, SYNCHRONIZER_PROJECT, SYNCHRONIZER_TEST, install

from shoal.core.errors import UsageError
from shoal.groups.base import WorkerGroup
from shoal.plan import Plan, registry
from shoal.plan.rules import check
from shoal.plan.switching import check_switch
from shoal.plan.traffic import traffic
from shoal.sync.independent import IndependentSynchronizer
from shoal.sync.settings import SynchronizerSettings
from shoal.sync.synchronizer import Synchronizer
from shoal.testing import SynchronizerCase
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.build import EngineChooser, build_exchange


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    install(folder, "shoal_slow", SYNCHRONIZER, SYNCHRONIZER_PROJECT)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setattr(registry, "_registered", {})
        yield folder
        sys.modules.pop("shoal_slow", None)


class TestSlowAverage(SynchronizerCase):
    """What the page's own test runs."""

    synchronous = False

    def make(self, group: WorkerGroup, directory: Path) -> Synchronizer:
        slow = importlib.import_module("shoal_slow").SlowAverage(steps=2)
        made: Synchronizer = slow.make_synchronizer(build_exchange(Plan(), group, EngineChooser(group, directory)))
        return made


def test_the_page_keeps_what_it_promises() -> None:
    assert len(SYNCHRONIZER.splitlines()) < 80
    assert "class TestSlow(SynchronizerCase)" in SYNCHRONIZER_TEST


def test_a_plan_holds_it_as_any_other_pace() -> None:
    plan = Plan.parse("int8, slow(4)")
    assert str(plan) == "allreduce, slow(steps=4, rate=0.5), int8(1024)"
    assert Plan.parse(str(plan)) == plan
    assert check(plan, 2) == []
    assert traffic(plan, 2).steps == 4
    assert registry.packages_of(plan.terms) == {"slow": "shoal-slow 1.0"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slow(0)", "slow(steps=0): steps must be a whole number from 1 to 1000000"),
        ("slow(rate=2.0)", "slow(rate=2.0): rate must be a number from 0.001 to 1"),
        ("slow, local(4)", "both say when replicas agree (pace); keep one"),
        ("alone, slow", "but under 'alone' they never do"),
        ("slow, order(largest, budget=1mb)", "nothing leaves while a backward pass runs"),
        ("slow, wire(auto)", "it measures exchanges of single steps"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        check(Plan.parse(text), 2)


def test_no_run_is_switched_to_it() -> None:
    with pytest.raises(UsageError, match="no run can be switched from or to"):
        check_switch(Plan(), Plan.parse("slow"), 2)


def trained(plan: str) -> list[Result]:
    def body(world: WorkerWorld) -> Result:
        run = world.start(plan)
        torch.manual_seed(7)
        model = torch.nn.Linear(4, 2)
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        start = model.weight.detach().clone()
        for step in range(6):
            rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + run.rank))
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return {"start": start, "weight": model.weight.detach().clone()}

    return run_world(2, body)


def test_it_moves_by_its_rate_towards_the_mean() -> None:
    """Whole, it is the average of local steps to the bit; one round at half the rate goes half the way."""
    for slow, local in zip(trained("slow(steps=2, rate=1.0)"), trained("local(2, average)"), strict=True):
        assert torch.equal(slow["weight"], local["weight"])
    for half, whole in zip(trained("slow(steps=6, rate=0.5)"), trained("local(6, average)"), strict=True):
        torch.testing.assert_close(half["weight"], (whole["start"] + whole["weight"]) / 2)


def test_shoal_explains_it_and_trains_with_it(tmp_path: Path) -> None:
    explained = shoal(tmp_path, "plan", "explain", "slow(4)", "--workers", "2").out
    assert "Zhang et al. 2019" in explained
    outcome = train(tmp_path, TRAIN, "--workers", "2", "--plan", "slow(steps=3, rate=0.5)", "--name", "one")
    assert outcome.code == 0, outcome.err
    events = [json.loads(line) for line in (tmp_path / "runs/one/worker-0.jsonl").read_text().splitlines()]
    assert [event["rounds"] for event in events if "rounds" in event][-1] == 2  # 24 samples, 2 workers, batches of 4


def _stub(**facts: object) -> type:
    methods = {"make_synchronizer": lambda self, exchange: IndependentSynchronizer()}
    return type("Stub", (SynchronizerSettings,), {"__doc__": "Does it.", "name": "stub", **methods, **facts})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (int, "int is no synchronizer; inherit from shoal.sync.settings.SynchronizerSettings"),
        (_stub(), "Stub must be a frozen dataclass"),
        (dataclass(frozen=True)(_stub(name="local")), "which is a term or a named plan of Shoal"),
        (
            dataclass(frozen=True)(type("Stub", (SynchronizerSettings,), {"name": "stub"})),
            "does not define make_synchronizer",
        ),
    ],
)
def test_what_cannot_stand_in_a_plan_is_not_registered(kind: type, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        registry.register_synchronizer(kind)


def test_a_synchronizer_whose_samples_nobody_counts_is_refused() -> None:
    registry.register_synchronizer(dataclass(frozen=True)(_stub(name="other")))

    def body(world: WorkerWorld) -> Result:
        model = torch.nn.Linear(2, 1)
        with pytest.raises(UsageError, match=r"'other' makes a IndependentSynchronizer.*inherit from LocalSteps"):
            world.start("other").join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return {}

    run_world(2, body)
