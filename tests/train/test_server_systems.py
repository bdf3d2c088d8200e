"""What named plans of parameter servers promise: a bound, a client cache, eager values, asynchrony; on two workers."""

import time
from collections.abc import Callable

import torch
from by_servers import run_served
from loops import assert_equal, batches, data, loader, loss_of, parameters, sgd, train
from models import make

from shoal.core.events import ServerCounted
from shoal.testing.world import Result, WorkerWorld
from shoal.train.run import Run
from shoal.watch.record import RunRecord

STEPS, BOUND = 12, 3


def told(run: Run) -> ServerCounted:
    """What the record of a run that has ended says of its servers."""
    return [each for each in RunRecord.open(run.dir).events(run.rank) if isinstance(each, ServerCounted)][-1]


def side_by_side(plan: str) -> tuple[int, float]:
    """Pulls of both workers, and the mean staleness, where both make the same step at the same time."""

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, model = start(), make("mlp")
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(8 * STEPS)))
        train(model, optimizer, (steps for _ in run.epochs(1)), between=run.barrier)
        run.close()
        found = told(run)
        stale = sum(int(behind) * count for behind, count in found.staleness.items()) / STEPS
        assert max(map(int, found.staleness)) <= BOUND
        return {"pulls": torch.tensor(found.pulls), "stale": torch.tensor(stale)}

    results = run_served(2, plan, body)
    return sum(int(each["pulls"]) for each in results), sum(float(each["stale"]) for each in results) / 2


def test_a_client_cache_within_the_bound_saves_pulls_and_eager_values_are_less_stale() -> None:
    synchronous, _ = side_by_side("server, stale(0)")
    lazy, lazy_staleness = side_by_side("ssp")
    eager, eager_staleness = side_by_side("essp")
    assert synchronous == eager == 2 * STEPS
    assert synchronous / lazy >= (BOUND + 1) / 2
    assert eager_staleness < lazy_staleness


def asynchronous(plan: str, rate: float = 0.05) -> tuple[float, float, int]:
    """The loss before and after, and the largest staleness of the fast worker beside one that sleeps."""
    dataset = data(8 * STEPS)

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, model = start(), make("mlp")
        before = loss_of(model, *dataset.tensors).detach()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        model, optimizer, steps = run.join(model, optimizer, loader(2, dataset))
        pause = (lambda: None) if run.rank == 0 else (lambda: time.sleep(0.03))
        train(model, optimizer, (steps for _ in run.epochs(2)), between=pause)
        after = loss_of(model, *dataset.tensors).detach()
        run.close()
        return {"before": before, "after": after, "stale": torch.tensor(max(map(int, told(run).staleness)))}

    first, _ = run_served(2, plan, body)
    return float(first["before"]), float(first["after"]), int(first["stale"])


def test_downpour_waits_for_nobody_and_adagrad_at_the_server_trains() -> None:
    before, after, stale = asynchronous("downpour")
    assert after < before
    assert stale > BOUND


def test_tensorflow_servers_wait_for_nobody_and_train() -> None:
    before, after, stale = asynchronous("tf-ps")
    assert after < before
    assert stale > BOUND


def test_the_key_value_store_of_mxnet_equals_one_process() -> None:
    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, own = start(), make("mlp")
        own, optimizer, steps = run.join(own, sgd(own), loader(2, data(33)))
        train(own, optimizer, (steps for _ in run.epochs(1)))
        return parameters(own)

    model = make("mlp")
    train(model, sgd(model), [batches(data(33), 0)])
    for result in run_served(2, "mxnet-kvstore", body):
        assert_equal(result, model)
