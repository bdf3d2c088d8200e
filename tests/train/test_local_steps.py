"""Training under `local(…)`: equal to synchronous SGD, to replicas simulated one after the other, and to itself."""

import copy
from collections.abc import Sequence

import pytest
import torch
from loops import assert_equal, batches, data, loader, loss_of, parameters, train
from models import make
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.errors import UsageError
from shoal.data.deal import deal
from shoal.sync.observer import CodecSwitched
from shoal.testing.world import Result, WorkerWorld, WorldError, run_world

EPOCHS = 2


def plain(model: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


def trained(plan: str, size: int, momentum: float = 0.0, samples: int = 37, kind: str = "mlp") -> list[Result]:
    """Parameters of all workers after two epochs of 5 steps, the last of which is short."""

    def body(world: WorkerWorld) -> Result:
        run = world.start(plan)
        model = make(kind)
        model, optimizer, steps = run.join(model, plain(model, momentum), loader(size, data(samples)))
        train(model, optimizer, (steps for _ in run.epochs(EPOCHS)))
        return parameters(model)

    return run_world(size, body)


@pytest.mark.parametrize(("size", "samples"), [(2, 37), (4, 33)], ids=["2 workers", "one alone has the last sample"])
def test_one_step_a_round_with_sgd_is_synchronous_sgd(size: int, samples: int) -> None:
    model = make("mlp")
    train(model, plain(model), [batches(data(samples), epoch) for epoch in range(EPOCHS)])
    results = trained("local(1, average)", size, samples=samples)
    for result in results:
        assert_equal(result, model)
        assert all(torch.equal(result[name], results[0][name]) for name in result)


def simulate(size: int, steps: int, momentum: float) -> nn.Module:
    """Replicas one after the other; each round, and each epoch, they become their mean by samples."""
    replicas = [make("mlp")]
    replicas += [copy.deepcopy(replicas[0]) for _ in range(size - 1)]
    optimizers = [plain(replica, momentum) for replica in replicas]
    for epoch in range(EPOCHS):
        whole = batches(data(), epoch)
        for first in range(0, len(whole), steps):
            counts = [0] * size
            for x, y in whole[first : first + steps]:
                parts = zip(deal(x, size), deal(y, size), strict=True)
                for rank, (own_x, own_y) in enumerate(parts):
                    loss_of(replicas[rank], own_x, own_y).backward()
                    optimizers[rank].step()
                    optimizers[rank].zero_grad()
                    counts[rank] += len(own_x)
            _average(replicas, counts)
    return replicas[0]


def _average(replicas: Sequence[nn.Module], counts: Sequence[int]) -> None:
    with torch.no_grad():
        for alike in zip(*(replica.parameters() for replica in replicas), strict=True):
            mean = sum(n * p.detach() for n, p in zip(counts, alike, strict=True)) / sum(counts)
            for parameter in alike:
                parameter.copy_(mean)


def test_four_steps_a_round_equal_replicas_simulated_one_after_the_other() -> None:
    """Rounds of 4, 1, 4 and 1 steps: the end of an epoch ends a round. Each optimizer keeps its own momentum."""
    expected = simulate(2, 4, 0.9)
    for result in trained("local(4, average)", 2, momentum=0.9):
        assert_equal(result, expected, 1e-5)


def test_outer_sgd_with_rate_1_is_the_average() -> None:
    first, other = trained("local(3)", 2), trained("local(3, diloco, rate=1.0, momentum=0.0)", 2)
    for name, value in first[0].items():
        torch.testing.assert_close(other[1][name], value, atol=1e-7, rtol=0)


def simulate_elastic(size: int, steps: int, beta: float) -> nn.Module:
    """Replicas one after the other and a centre; at the end of an epoch all replicas become the centre."""
    centre = make("mlp")
    for epoch in range(EPOCHS):
        replicas = [copy.deepcopy(centre) for _ in range(size)]
        whole = batches(data(), epoch)
        for first in range(0, len(whole), steps):
            counts = [0] * size
            for x, y in whole[first : first + steps]:
                parts = zip(deal(x, size), deal(y, size), strict=True)
                for rank, (own_x, own_y) in enumerate(parts):
                    loss_of(replicas[rank], own_x, own_y).backward()
                    plain(replicas[rank]).step()
                    replicas[rank].zero_grad()
                    counts[rank] += len(own_x)
            _pull(centre, replicas, [beta * n / sum(counts) for n in counts])
    return centre


def _pull(centre: nn.Module, replicas: Sequence[nn.Module], alphas: Sequence[float]) -> None:
    with torch.no_grad():
        for middle, *alike in zip(centre.parameters(), *(replica.parameters() for replica in replicas), strict=True):
            corrections = [alpha * (p - middle) for alpha, p in zip(alphas, alike, strict=True)]
            for parameter, correction in zip(alike, corrections, strict=True):
                parameter.sub_(correction)
            middle.add_(sum(corrections))


def test_elastic_rounds_equal_replicas_simulated_one_after_the_other() -> None:
    """Rounds of 2, 2 and 1 steps. Evaluations after an epoch, and the end, find the centre on all workers."""
    expected = simulate_elastic(2, 2, 0.9)
    results = trained("local(2, easgd)", 2)
    for result in results:
        assert_equal(result, expected, 1e-5)
        assert all(torch.equal(result[name], results[0][name]) for name in result)


def test_running_statistics_are_averaged_at_rounds() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start("local(2)")
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        model, optimizer, steps = run.join(model, plain(model), loader(2))
        seen = []
        for x, y in steps:
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(model[1].running_mean.clone())
        return {"mean": torch.stack(seen), "end": model[1].running_mean.clone()}

    first, second = run_world(2, body)
    equal = [torch.equal(a, b) for a, b in zip(first["mean"], second["mean"], strict=True)]
    assert equal[:4] == [False, True, False, True]
    assert torch.equal(first["end"], second["end"])


def simulate_late(size: int, steps: int) -> nn.Module:
    """Replicas one after the other: a round counts when the next one ends, and at the end of an epoch."""
    replicas = [make("mlp")]
    replicas += [copy.deepcopy(replicas[0]) for _ in range(size - 1)]
    anchor = [p.detach().clone() for p in replicas[0].parameters()]
    for epoch in range(EPOCHS):
        whole, last = batches(data(), epoch), None
        for first in range(0, len(whole), steps):
            starts = [[p.detach().clone() for p in replica.parameters()] for replica in replicas]
            counts = [0] * size
            for x, y in whole[first : first + steps]:
                parts = zip(deal(x, size), deal(y, size), strict=True)
                for rank, (own_x, own_y) in enumerate(parts):
                    loss_of(replicas[rank], own_x, own_y).backward()
                    plain(replicas[rank]).step()
                    replicas[rank].zero_grad()
                    counts[rank] += len(own_x)
            own = [_changes(replica, start) for replica, start in zip(replicas, starts, strict=True)]
            mean = [sum(n * d for n, d in zip(counts, ds, strict=True)) / sum(counts) for ds in zip(*own, strict=True)]
            anchor = [a + d for a, d in zip(anchor, last, strict=True)] if last is not None else anchor
            last = mean
            for replica, change in zip(replicas, own, strict=True):
                _set(replica, [a + d for a, d in zip(anchor, change, strict=True)])
        anchor = [a + d for a, d in zip(anchor, last or [], strict=True)]
        for replica in replicas:
            _set(replica, anchor)
    return replicas[0]


def _changes(replica: nn.Module, start: Sequence[Tensor]) -> list[Tensor]:
    return [p.detach() - before for p, before in zip(replica.parameters(), start, strict=True)]


def _set(replica: nn.Module, values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(replica.parameters(), values, strict=True):
            parameter.copy_(value)


def test_rounds_that_travel_meanwhile_equal_replicas_simulated_one_after_the_other() -> None:
    expected = simulate_late(2, 2)
    results = trained("local(2, average, overlap=true)", 2)
    for result in results:
        assert_equal(result, expected, 1e-5)
        assert all(torch.equal(result[name], results[0][name]) for name in result)


@pytest.mark.parametrize("plan", ["local(3)", "local(4, fragments=2)", "local(9, fragments=3)"])
def test_a_script_that_leaves_out_a_batch_on_one_worker_comes_to_the_same_rounds(plan: str) -> None:
    """Worker 1 makes its steps one batch later; nobody waits for ever, and no sample is dealt twice."""
    samples = 48

    def body(world: WorkerWorld) -> Result:
        run = world.start(plan)
        model = make("mlp")
        dataset = TensorDataset(*data(samples).tensors, torch.arange(samples))
        model, optimizer, steps = run.join(model, plain(model), DataLoader(dataset, batch_size=2, shuffle=True))
        seen: list[Tensor] = []
        for _ in run.epochs(1):
            for number, (x, y, ids) in enumerate(steps):
                seen.append(ids)
                if run.rank == 1 and number in (1, 7):
                    continue
                loss_of(model, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return {"seen": torch.cat(seen), **parameters(model)}

    results = run_world(2, body)
    assert sorted(torch.cat([result["seen"] for result in results]).tolist()) == list(range(samples))
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items() if name != "seen")


def test_with_overlap_a_script_that_leaves_out_a_batch_on_one_worker_is_told_so_everywhere() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start("local(3, overlap=true)")
        model = make("mlp")
        model, optimizer, steps = run.join(model, plain(model), DataLoader(data(48), batch_size=2))

        def leave_one_out() -> None:
            for number, (x, y) in enumerate(steps):
                if run.rank != 1 or number != 1:
                    loss_of(model, x, y).backward()
                    optimizer.step()
                    optimizer.zero_grad()

        with pytest.raises(UsageError, match=r"different numbers of batches.*remove overlap=true"):
            leave_one_out()
        return {}

    run_world(2, body)


def lying(plan: str, word: float, remote: bool, rounds: int) -> list[Result]:
    """Worker 1 adds `word` to all numbers of each round; worker 0 gives up remote workers only."""

    def body(world: WorkerWorld) -> Result:
        run = world.start(plan)
        model, accused = make("mlp"), []
        model, optimizer, steps = run.join(model, plain(model), DataLoader(data(8 * rounds), batch_size=2))
        averages = run._together.joined[0].synchronizer._rounds
        launch, session = averages.launch_round, world.group.session
        if run.rank == 1:
            averages.launch_round = lambda tensors, own, words: launch(tensors, own + word, [word for _ in words])
            session.distrust = lambda member, error: None
        else:
            session.distrust = lambda member, error: accused.append(member)
        session.remote = lambda member: remote and member == session.view.members[1]
        train(model, optimizer, (steps for _ in run.epochs(1)))
        return {"accused": torch.tensor(len(accused)), **parameters(model)}

    return run_world(2, body)


@pytest.mark.parametrize("word", [float("nan"), float("inf"), -1e30])
def test_a_remote_worker_that_spoils_every_round_is_given_up_and_nobody_else_fails(word: float) -> None:
    result, _ = lying("local(2)", word, remote=True, rounds=6)
    assert int(result["accused"]) == 2, "after three rounds in a row, and three more"


def test_sums_that_are_too_large_end_the_run_with_one_line() -> None:
    with pytest.raises(WorldError, match=r"not finite in 3 rounds in a row.*lower the learning rate"):
        lying("local(2)", float("inf"), remote=False, rounds=6)


def test_what_auto_chooses_is_in_the_record_of_worker_0() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start("local(auto)")
        model = make("mlp")
        model, optimizer, steps = run.join(model, plain(model), loader(2))
        run._together.joined[0].exchange.observer.report(CodecSwitched("local(24)", "an exchange takes long"))
        train(model, optimizer, (steps for _ in run.epochs(EPOCHS)))
        run.close()
        told = (run.dir / f"worker-{run.rank}.jsonl").read_text().splitlines()
        return {"told": torch.tensor(sum('"codec":"local(24)"' in line for line in told))}

    assert [int(result["told"]) for result in run_world(2, body)] == [1, 0]


def test_a_script_that_leaves_its_loop_finds_equal_replicas() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start("local(3)")
        model = make("mlp")
        model, optimizer, steps = run.join(model, plain(model), loader(2))
        for number, (x, y) in enumerate(steps):
            if number == 2:
                break
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return parameters(model)

    first, second = run_world(2, body)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("plan", ["local(4, bmuf)", "local(4, bmuf, overlap=true)"])
def test_a_script_without_a_loader(plan: str) -> None:
    """Epochs of its own batches, several optimizers and a barrier: the last optimizer counts the steps."""

    def body(world: WorkerWorld) -> Result:
        run = world.start(plan)
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
        first, second = plain(model[0]), plain(model[1], 0.5)
        run.join(model, first, second)
        generator = torch.Generator().manual_seed(run.rank)
        for _ in run.epochs(2):
            for _ in range(6):
                loss_of(model, torch.randn(4, 6, generator=generator), torch.zeros(4, 3)).backward()
                for optimizer in (first, second):
                    optimizer.step()
                    optimizer.zero_grad()
                run.barrier()  # a round may be under way
                assert run.mean(float(run.rank)) == 0.5
        return parameters(model)

    first, second = run_world(2, body)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("plan", ["local(3)", "local(4, bmuf, overlap=true)", "shared", "mix(butterfly)", "stale(2)"])
@pytest.mark.parametrize("loader_first", [True, False], ids=["loader first", "loader last"])
def test_a_loader_and_a_scheduler_may_be_joined_by_themselves(plan: str, loader_first: bool) -> None:
    """In them is nothing to agree on, so the result is that of one join."""

    def body(world: WorkerWorld, together: bool) -> Result:
        run = world.start(plan)
        model = make("mlp")
        optimizer, steps = plain(model), loader(2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        if together:
            model, optimizer, steps, scheduler = run.join(model, optimizer, steps, scheduler)
        else:
            parts: list[tuple[object, ...]] = [(model, optimizer), (steps,), (scheduler,)]
            joined = [run.join(*part) for part in (parts[::-1] if loader_first else parts)]
            steps = joined[1]
        for _ in run.epochs(2):
            train(model, optimizer, [steps])
            scheduler.step()
        return parameters(model)

    apart, at_once = (run_world(2, lambda world, way=way: body(world, way)) for way in (False, True))
    if plan != "shared":  # whose workers write as they please
        assert all(torch.equal(apart[0][name], value) for name, value in at_once[0].items())


def test_rounds_that_travel_are_those_of_one_join() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start("local(4, overlap=true)")
        first, second = make("mlp"), make("mlp")
        run.join(first, plain(first))
        with pytest.raises(UsageError, match=r"give all models and optimizers to one join\(\)"):
            run.join(second, plain(second))
        return {}

    run_world(2, body)
