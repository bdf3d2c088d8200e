"""Unequal shares of a batch: the result is that of one process, every sample counts once, and shares follow speeds."""

import pytest
import torch
from loops import assert_equal, batches, data, loader, parameters, sgd, train
from models import make
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.errors import PayloadError
from shoal.core.events import SharesChanged, StepFinished
from shoal.core.ledger import prove, read_ledger
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.balance import GAIN, MOST_UNEQUAL, ShareBalancer, check_rate, expected_gain
from shoal.watch.record import RunRecord

EPOCHS = 3


def told(balancer: ShareBalancer, *rates: float) -> bool:
    return balancer.update([f"m{n}" for n in range(len(rates))], range(len(rates)), rates)


def test_shares_follow_speeds() -> None:
    balancer = ShareBalancer("auto", ())
    assert told(balancer, 400.0, 400.0, 400.0, 100.0)
    assert balancer.shares(["m0", "m1", "m2", "m3"]) == (1000, 1000, 1000, 250)


def test_small_differences_change_nothing() -> None:
    balancer = ShareBalancer("auto", ())
    assert not told(balancer, 100.0, 103.0)
    assert balancer.shares(["m0", "m1"]) == ()


def test_fixed_costs_are_balanced_after_some_rounds() -> None:
    """A step of n samples takes a + b n seconds; repeating the arithmetic makes all workers end together."""
    balancer, members = ShareBalancer("auto", ()), ["m0", "m1", "m2"]
    costs = [(0.01, 0.001), (0.02, 0.001), (0.01, 0.004)]
    for _ in range(12):
        shares = balancer.shares(members) or (1, 1, 1)
        samples = [96 * share / sum(shares) for share in shares]
        seconds = [a + b * n for (a, b), n in zip(costs, samples, strict=True)]
        told(balancer, *(n / t for n, t in zip(samples, seconds, strict=True)))
    assert max(seconds) / min(seconds) < 1.25
    assert expected_gain(shares, [n / t for n, t in zip(samples, seconds, strict=True)]) < GAIN


def test_nothing_changes_while_a_speed_is_unknown() -> None:
    assert not told(ShareBalancer("auto", ()), 100.0, 0.0)


def test_a_speed_needs_some_steps_and_is_told_once() -> None:
    balancer = ShareBalancer("auto", ())
    for _ in range(2):
        balancer.add_step(10, 0.5)
        assert balancer.take_rate() == 0
    balancer.add_step(10, 0.5)
    assert balancer.take_rate() == 20
    assert balancer.take_rate() == 0


def test_a_boaster_gets_no_more_than_its_bound() -> None:
    balancer = ShareBalancer("auto", ())
    told(balancer, 1.0, 1e12)
    small, large = balancer.shares(["m0", "m1"])
    assert large <= MOST_UNEQUAL * (small + 1)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
def test_what_is_no_speed_is_refused(rate: float) -> None:
    with pytest.raises(PayloadError, match="a speed is a finite number"):
        check_rate(rate)


def test_a_ratio_belongs_to_slots_and_a_newcomer_has_the_mean_until_it_is_known() -> None:
    balancer = ShareBalancer("4:1:1", ["a", "b", "c"])
    assert balancer.shares(["a", "b", "c"]) == (4, 1, 1)
    assert balancer.shares(["b", "c", "d"]) == ()
    assert balancer.update(["b", "c", "d"], [1, 2, 0], [0.0, 0.0, 0.0])
    assert balancer.shares(["b", "c", "d"]) == (1, 1, 4)


def numbered(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples), *data(samples).tensors)


@pytest.mark.parametrize("plan", ["balance(3:1)", "balance(1:5:1:2)"])
def test_a_ratio_equals_one_process(plan: str) -> None:
    size = plan.count(":") + 1

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(plan), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(size))
        train(model, optimizer, (steps for _ in run.epochs(EPOCHS)))
        return parameters(model) | {"samples": torch.tensor(run.samples)}

    model = make()
    train(model, sgd(model), [batches(data(), epoch) for epoch in range(EPOCHS)])
    results = run_world(size, body)
    for result in results:
        assert_equal(result, model)
    assert int(results[1]["samples"]) != int(results[0]["samples"])


def test_auto_follows_what_workers_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds are made up, so that nothing hangs on the clock: worker 1 says that it is three times as fast."""
    import shoal.train.checkpoint.coordinator as coordinator

    monkeypatch.setattr(coordinator, "steps_between", lambda step, sync: 1)  # synchronize after every step
    samples = 64

    def body(world: WorkerWorld) -> Result:
        run, model = world.start("balance(auto)"), make()
        run._together.checkpoints.balancer.take_rate = lambda: 100.0 * (1 + 2 * run.rank)  # type: ignore[union-attr, method-assign]
        steps = DataLoader(numbered(samples), batch_size=4)
        model, optimizer, steps = run.join(model, sgd(model), steps)
        given = []
        for _ in run.epochs(1):
            for ids, x, y in steps:
                given += [len(ids)]
                (model(x) - y).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        run.close()
        if not run.is_main:
            return {"given": torch.tensor(given)}
        [proof] = prove(read_ledger(world.dir / "run"))
        events = list(RunRecord.open(world.dir / "run").events(0))
        [changed] = [event for event in events if isinstance(event, SharesChanged)]
        assert changed.shares == {"0": pytest.approx(0.25, abs=0.01), "1": pytest.approx(0.75, abs=0.01)}
        assert changed.rates == {"0": 100.0, "1": 300.0}
        assert sum(event.samples for event in events if isinstance(event, StepFinished)) == sum(given)
        return {"given": torch.tensor(given), "proof": torch.tensor([proof.samples, proof.missing, proof.duplicate])}

    first, second = run_world(2, body)
    assert first["given"].tolist() == [4] + [2] * 7
    assert second["given"].tolist() == [4] + [6] * 7
    assert first["proof"].tolist() == [samples, 0, 0]
