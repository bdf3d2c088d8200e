"""What scripts do with models: groups, freezing, tying, unused parts, statistics, precision, sparse gradients."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from loops import adamw, assert_equal, batches, data, loader, loss_of, parameters, sgd, train
from models import MLP, make
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, SparseAdam
from torch.utils.checkpoint import checkpoint

from shoal.testing.world import Result, WorkerWorld, run_world

Script = Callable[[nn.Module, Optimizer, Iterable[Any]], None]


def check_equal(
    kind: type[nn.Module] | str = "mlp",
    script: Script = train,
    optimizer_of: Callable[[nn.Module], Optimizer] = sgd,
    samples: int = 37,
    bound: float = 1e-6,
    size: int = 2,
) -> None:
    """`script` on some workers equals `script` in one process."""

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make(kind)
        model, optimizer, steps = run.join(model, optimizer_of(model), loader(size, data(samples)))
        script(model, optimizer, (steps for _ in run.epochs(2)))
        return parameters(model)

    model = make(kind)
    script(model, optimizer_of(model), [batches(data(samples), epoch) for epoch in range(2)])
    for result in run_world(size, body):
        assert_equal(result, model, bound)


def test_parameter_groups() -> None:
    def groups(model: nn.Module) -> Optimizer:
        first, *others = model.parameters()
        return SGD([{"params": [first], "lr": 0.3}, {"params": others, "momentum": 0.5}], lr=0.05)

    check_equal(optimizer_of=groups)


def test_frozen_parameters() -> None:
    class Frozen(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.layers[0].requires_grad_(False)
            self.table = nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)

    check_equal(Frozen, optimizer_of=lambda m: sgd(m.layers), samples=33, size=4)


@pytest.mark.parametrize("to_none", [True, False])
def test_frozen_late_and_thawed_late(to_none: bool) -> None:
    class Half(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.layers[0].requires_grad_(False)

    def script(model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any]) -> None:
        for number, epoch in enumerate(epochs):
            model.layers[0].requires_grad_(number == 1)
            model.layers[4].requires_grad_(number == 0)
            for x, y in epoch:
                loss_of(model, x, y).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=to_none)

    check_equal(Half, script, samples=33, size=4)


def test_thawed_while_workers_weigh_differently() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model.layers[0].requires_grad_(False)
        model = run.join(model)
        x, y = data()[:4] if run.rank else data()[4:16]
        for number in range(2):
            run.weight(len(x))
            model.layers[0].requires_grad_(number == 1)
            model.zero_grad()
            loss_of(model, x, y).backward()
        return {"grad": model.layers[0].weight.grad}

    model = make()
    loss_of(model, *data()[:16]).backward()
    for result in run_world(2, body):
        torch.testing.assert_close(result["grad"], model.layers[0].weight.grad)


class Paths(nn.Module):
    """Which layer a batch takes depends on the batch, so workers differ."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 8)
        self.left, self.right, self.idle = nn.Linear(8, 3), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden, left = torch.tanh(self.trunk(x)), x[:, :1] > 0
        result = hidden.new_zeros(len(x), 3)
        if left.any():
            result = result + left * self.left(hidden)
        if not left.all():
            result = result + ~left * self.right(hidden)
        return result


def test_parameters_unused_on_some_workers_or_all() -> None:
    def script(model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any]) -> None:
        train(model, optimizer, epochs, lambda: None)
        assert model.idle.weight.grad is None
        assert not optimizer.state[model.idle.weight]

    check_equal(Paths, script, adamw, samples=33, size=4)


def test_tied_parameters() -> None:
    class Tied(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.layers[2].weight = nn.Parameter(torch.eye(8) * 0.3)
            self.again = nn.Linear(8, 8)
            self.again.weight = self.layers[2].weight

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[4](torch.tanh(self.again(self.layers[:3](x))))

    check_equal(Tied)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
        self.register_buffer("peak", torch.zeros(3))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        result = self.layers(x)
        if self.training:
            self.peak = 0.5 * self.peak + 0.5 * result.detach().mean(0)
            self.seen += len(x)
        return result


def test_statistics_are_the_mean_of_the_workers() -> None:
    """Equal after each step; what a layer replaces instead of changing counts too; counters stay each worker's own."""

    def body(world: WorkerWorld) -> Result:
        run = world.start()
        model, optimizer, steps = run.join(model := make(Normed), sgd(model), loader(2, data(32)))
        result = {}
        for number, (x, y) in enumerate(steps):
            mine = Normed()
            mine.load_state_dict(model.state_dict())
            mine(x)
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            result |= {f"{number} own {n}": b.detach() for n, b in mine.named_buffers()}
            result |= {f"{number} {n}": b.detach().clone() for n, b in model.named_buffers()}
        return result

    first, second = run_world(2, body)
    for number in range(4):
        for name in ("layers.1.running_mean", "layers.1.running_var", "peak"):
            mean = (first[f"{number} own {name}"] + second[f"{number} own {name}"]) / 2
            torch.testing.assert_close(first[f"{number} {name}"], mean)
            assert torch.equal(first[f"{number} {name}"], second[f"{number} {name}"])
    assert first["3 layers.1.num_batches_tracked"] == 4
    assert first["3 seen"] == 16


def test_statistics_of_a_worker_without_samples_and_in_eval() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start()
        model, optimizer, steps = run.join(model := make(Normed), sgd(model), loader(4, data(41)))
        model.layers[1].eval()
        train(model, optimizer, [steps])
        return {name: buffer.detach() for name, buffer in model.named_buffers()}

    results = run_world(4, body)
    for result in results:
        assert torch.equal(result["layers.1.running_mean"], torch.zeros(8))
        for name, buffer in results[0].items():
            assert torch.equal(result[name], buffer), name


@pytest.fixture
def no_dynamo_state(tmp_path, monkeypatch) -> Iterator[None]:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    warm_up = torch.compile(nn.Linear(1, 1), backend="aot_eager")  # imports once what each worker would
    warm_up(torch.ones(1, 1)).sum().backward()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("early", [True, False], ids=["compiled-before-join", "compiled-after-join"])
@pytest.mark.usefixtures("no_dynamo_state")
@pytest.mark.filterwarnings("ignore")
def test_compiled_model(early: bool) -> None:
    """aot_eager: the graphs of the real thing, without a compiler of machine code in every worker."""

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        compiled = torch.compile(model, backend="aot_eager") if early else model
        joined, optimizer, steps = run.join(compiled, sgd(model), loader(2, data(33)))
        used = joined if early else torch.compile(joined, backend="aot_eager")
        train(used, optimizer, [steps])
        return parameters(model)

    model = make()
    train(model, sgd(model), [batches(data(33), 0)])
    for result in run_world(2, body):
        assert_equal(result, model)


def in_shards(model: nn.Module, epochs: int, shrunk: float, dtype: torch.dtype, autocast: bool) -> Result:
    """Two workers by hand: each halves' gradients at the same precision, averaged by samples; then one step of SGD.

    `shrunk` scales the gradients: the same comparison must tell 0.9 from 1.
    """
    optimizer = sgd(model)
    for epoch in range(epochs):
        for x, y in batches(data(dtype=dtype), epoch):
            halves = [slice(0, (len(x) + 1) // 2), slice((len(x) + 1) // 2, None)]
            sums = [torch.zeros_like(p, dtype=torch.float32) for p in model.parameters()]
            for half in halves:
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = loss_of(model, x[half], y[half])
                for total, gradient in zip(sums, torch.autograd.grad(loss, list(model.parameters())), strict=True):
                    total += gradient.float() * (len(x[half]) / len(x))
            for parameter, total in zip(model.parameters(), sums, strict=True):
                parameter.grad = (shrunk * total).to(dtype)
            optimizer.step()
    return {name: p.float() for name, p in parameters(model).items()}


def apart(one: Result, other: Result, start: nn.Module) -> float:
    """How far two trainings ended from each other, as a share of how far the second one went."""

    def flat(result: Result) -> Tensor:
        return torch.cat([result[name].double().flatten() for name, _ in start.named_parameters()])

    begun = flat({name: p.float() for name, p in parameters(start).items()})
    return float((flat(one) - flat(other)).norm() / (flat(other) - begun).norm())


def check_low_precision(dtype: torch.dtype, autocast: bool, bound: float) -> None:
    """Two workers end where the same shards by hand end, and gradients a tenth too small would be seen."""

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make(dtype=dtype)
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(dtype=dtype)))
        for _ in run.epochs(2):
            for x, y in steps:
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = loss_of(model, x, y)
                loss.backward()
                assert all(p.grad.dtype is dtype for p in model.parameters())
                optimizer.step()
                optimizer.zero_grad()
        return {name: p.float() for name, p in parameters(model).items()}

    first, second = run_world(2, body)
    assert all(torch.equal(first[name], second[name]) for name in first)
    right, shrunk = (in_shards(make(dtype=dtype), 2, scale, dtype, autocast) for scale in (1.0, 0.9))
    assert apart(first, right, make(dtype=dtype)) < bound
    assert apart(first, shrunk, make(dtype=dtype)) > 2 * bound


def test_autocast() -> None:
    """Gradients of float32 parameters are float32, from products in bfloat16."""
    check_low_precision(torch.float32, autocast=True, bound=1e-3)


def test_model_in_bfloat16() -> None:
    check_low_precision(torch.bfloat16, autocast=False, bound=0.02)


class Words(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 3, sparse=True)
        self.scale = nn.Parameter(torch.ones(3))
        self.tied = tied

    def forward(self, x: Tensor) -> Tensor:
        result = self.table((x[:, 0] * 2 + 4).long().clamp(0, 9)) * self.scale
        return result + self.table.weight.sum(0) if self.tied else result


class TiedWords(Words):
    def __init__(self) -> None:
        super().__init__(tied=True)


@pytest.mark.parametrize("kind", [Words, TiedWords])
@pytest.mark.parametrize(("size", "samples"), [(2, 37), (4, 33)])
def test_sparse_embedding(size: int, samples: int, kind: type[nn.Module]) -> None:
    check_equal(kind, optimizer_of=lambda m: SGD(m.parameters(), lr=0.1), size=size, samples=samples)


def test_sparse_embedding_with_an_optimizer_of_its_own() -> None:
    def script(model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any]) -> None:
        def between() -> None:
            assert model.table.weight.grad.is_sparse
            model.scale.grad = None

        train(model, optimizer, epochs, between)

    check_equal(Words, script, lambda m: SparseAdam([m.table.weight], lr=0.01, eps=1e-3), samples=33, size=4)


def test_gradients_that_are_zeroed_in_place() -> None:
    def script(model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any]) -> None:
        for epoch in epochs:
            for x, y in epoch:
                optimizer.zero_grad(set_to_none=False)
                loss_of(model, x, y).backward()
                optimizer.step()

    check_equal(script=script, samples=33, size=4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    class Saving(MLP):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.layers[0](x))
            return self.layers[4](checkpoint(self.layers[1:4], x, use_reentrant=reentrant))

    check_equal(Saving)


def test_reentrant_checkpoints_that_share_a_parameter_are_refused() -> None:
    class Twice(MLP):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.layers[0](x))
            for _ in range(2):
                x = checkpoint(self.layers[1:4], x, use_reentrant=True)
            return self.layers[4](x)

    def body(world: WorkerWorld) -> None:
        model = world.start().join(make(Twice))
        with pytest.raises(Exception, match="use_reentrant=False"):
            loss_of(model, *data()[:4]).backward()

    run_world(2, body)
