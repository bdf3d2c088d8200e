"""Updates in parts, when they are needed, come to what a step at once comes to: the same bits."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from in_flight import Bench
from models import MODELS, make
from torch import Tensor, nn
from torch._dynamo import eval_frame
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from shoal.core.errors import DivergedError
from shoal.train.deferred import SEPARABLE

STEPS = 5


class Tied(nn.Module):
    """The first and the last layer share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle = nn.Linear(6, 8), nn.Linear(8, 8)
        self.head = nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.middle(torch.tanh(self.embed(x))))
        return torch.tanh(hidden @ self.embed.weight) @ self.head.T


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have compiled in this process."""
    monkeypatch.setattr(eval_frame, "cached_backends", {})


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4, 6, generator=generator), torch.randn(4, 3, generator=generator)


def train(
    model: nn.Module,
    optimizer: Optimizer,
    between: Callable[[nn.Module], Any] = lambda m: None,
    after: Callable[[nn.Module], Any] = lambda m: None,
    zero: dict[str, bool] | None = None,
    steps: int = STEPS,
) -> None:
    scheduler = ExponentialLR(optimizer, 0.8)
    for step in range(steps):
        x, y = batch(step)
        (model(x) - y).square().mean().backward()
        between(model)
        optimizer.step()
        scheduler.step()
        after(model)
        optimizer.zero_grad(**(zero or {}))


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def check(
    kind: Any = "mlp", optimizer_of: Callable[[nn.Module], Optimizer] = sgd, overlaps: bool = True, **options: Any
) -> Bench:
    expected, model = make(kind), make(kind)
    train(expected, optimizer_of(expected), **options)
    optimizer = optimizer_of(model)
    bench = Bench(model, optimizer)
    train(model, optimizer, **options)
    assert set(bench.put_off) == {overlaps}
    for (name, wanted), found in zip(expected.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(found, wanted), name
    return bench


@pytest.mark.parametrize("kind", [*MODELS, Tied])
def test_every_model(kind: Any) -> None:
    assert check(kind).told == []


@pytest.mark.parametrize("optimizer", sorted(SEPARABLE, key=lambda kind: kind.__name__))
def test_every_optimizer(optimizer: type[Optimizer]) -> None:
    check(optimizer_of=lambda model: optimizer(model.parameters(), lr=0.05))  # type: ignore[call-arg]


def test_groups_of_parameters() -> None:
    def grouped(model: nn.Module) -> Optimizer:
        parameters = list(model.parameters())
        return Adam(
            [{"params": parameters[::2], "lr": 0.1}, {"params": parameters[1::2], "weight_decay": 0.1}], lr=0.01
        )

    check(optimizer_of=grouped)


def test_each_layer_is_waited_for_just_before_it_is_used() -> None:
    """TicTac: the first layers' gradients leave first, and the forward pass of one layer hides the next one's."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    optimizer = sgd(model)
    bench = Bench(model, optimizer, capacity=1)  # a bucket for every parameter: 0 is the last bias, 5 the first weight
    events = bench.exchange.events
    for number, layer in enumerate(model):
        layer.register_forward_hook(lambda *_, n=number: events.append(f"layer {n}"))
    x, y = batch(0)
    (model(x) - y).square().mean().backward()
    assert not [event for event in events if event.startswith("finish")]
    optimizer.step()
    optimizer.zero_grad()
    assert [event for event in events if event.startswith("finish")] == ["finish 6"]  # the word: are all finite?
    events.clear()
    model(x)
    assert [*events[:3]] in (["finish 5", "finish 4", "layer 0"], ["finish 4", "finish 5", "layer 0"])
    assert [event for event in events if event.startswith("layer")] == ["layer 0", "layer 1", "layer 2"]
    assert set(events[3:5]) == {"finish 2", "finish 3"}
    assert events[5] == "layer 1"
    assert set(events[6:8]) == {"finish 0", "finish 1"}


def test_what_is_needed_first_is_most_urgent() -> None:
    """By the order of the model's parameters at first, then by what a forward pass did."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = nn.Linear(8, 3, bias=False), nn.Linear(6, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x))

    model = Backwards()
    optimizer = sgd(model)
    bench = Bench(model, optimizer, capacity=1)
    assert list(bench.exchange.priorities) == [2, 1, 0]  # bucket 0: first, 1: last, 2: the word
    train(model, optimizer, steps=2)
    assert list(bench.exchange.priorities) == [1, 2, 0]


def test_clipping_between_backward_and_step_waits_and_counts() -> None:
    check(between=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1))


def test_gradients_that_are_replaced_count() -> None:
    def halve(model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad * 0.5

    check(between=halve)


def test_whoever_looks_after_the_step_sees_the_update() -> None:
    """A moving average, weights that are held within bounds, a norm that is logged."""
    seen: list[list[float]] = []

    def look(model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.2, 0.2)
        seen.append([parameter.norm().item() for parameter in model.parameters()])

    check(after=look)
    assert seen[:STEPS] == seen[STEPS:]


@pytest.mark.parametrize("zero", [{"set_to_none": False}, {"set_to_none": True}])
def test_zeroed_gradients(zero: dict[str, bool]) -> None:
    check(zero=zero)


def test_gradients_that_are_never_zeroed_add_up() -> None:
    expected, model = make(), make()
    for one in (expected, model):
        optimizer = SGD(one.parameters(), lr=0.05)
        if one is model:
            Bench(model, optimizer)
        for step in range(3):
            x, y = batch(step)
            (one(x) - y).square().mean().backward()
            optimizer.step()
    for wanted, found in zip(expected.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)


def test_two_passes_before_a_step() -> None:
    """Their forward passes first: nothing but the gradients themselves tells that another pass begins."""
    expected, model = make(), make()
    for one in (expected, model):
        optimizer = sgd(one)
        if one is model:
            Bench(model, optimizer)
        for step in range(3):
            losses = [(one(x) - y).square().mean() for x, y in (batch(step), batch(step + 10))]
            for loss in losses:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for wanted, found in zip(expected.parameters(), model.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_passes_that_are_held_back() -> None:
    """Inside `run.accumulate()` gradients add up in `p.grad`: not in one that is still on its way."""
    expected, model = make(), make()
    for one in (expected, model):
        optimizer = sgd(one)
        bench = Bench(model, optimizer) if one is model else None
        for step in range(6):
            x, y = batch(step)
            if bench is not None and bench.joined.backward is not None:
                bench.joined.backward.quiet = step % 2 == 0
            (one(x) - y).square().mean().backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
    for wanted, found in zip(expected.parameters(), model.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_states_copies_and_evaluations_in_the_middle() -> None:
    def look(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
        with torch.inference_mode():
            output = model(batch(50)[0]).clone()
        states = [s for s in copy.deepcopy(optimizer.state_dict())["state"].values() for s in s.values()]
        return [output, *copy.deepcopy(model).state_dict().values(), *filter(torch.is_tensor, states)]

    for order in (1, -1):  # whoever is asked first
        found = []
        for deferred in (False, True):
            model = make()
            optimizer = Adam(model.parameters(), lr=0.1)
            if deferred:
                Bench(model, optimizer)
            train(model, optimizer, steps=2)
            if order < 0:
                optimizer.state_dict()
            found.append(look(model, optimizer))
            train(model, optimizer, steps=2)  # state made inside the evaluation can be updated
            file = io.BytesIO()
            torch.save(model, file)
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class Clipped(SGD):
    """An optimizer that looks at all gradients together."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


def test_an_unknown_optimizer_gets_all_gradients_and_the_record_says_so() -> None:
    bench = check(optimizer_of=lambda model: Clipped(model.parameters(), lr=0.1), overlaps=False)
    assert bench.told == [
        "order(needed) waits for all gradients before a step: Clipped may look at all gradients together"
    ]


def test_hooks_round_a_step_see_the_whole_step() -> None:
    norms: list[float] = []

    def hooked(model: nn.Module) -> Optimizer:
        optimizer = sgd(model)
        optimizer.register_step_post_hook(lambda *_: norms.append(sum(p.norm().item() for p in model.parameters())))
        return optimizer

    bench = check(optimizer_of=hooked, overlaps=False)
    assert norms[:STEPS] == norms[STEPS:]
    assert bench.told == ["order(needed) waits for all gradients before a step: there are hooks round SGD.step"]


def test_a_compiled_model_gets_its_updates_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_frame, "cached_backends", {1: object()})
    told = check(overlaps=False).told
    assert told == ["order(needed) waits for all gradients before a step: a model is compiled or scripted"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_model_gets_its_updates_at_once() -> None:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.jit.trace(make("mlp"), batch(0)[0], check_trace=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    assert check(Scripted, overlaps=False).told


def test_a_closure() -> None:
    expected, model = make(), make()
    x, y = batch(0)
    for one in (expected, model):
        optimizer = torch.optim.LBFGS(one.parameters(), lr=0.1, max_iter=3)
        if one is model:
            bench = Bench(model, optimizer)

        def closure(one: nn.Module = one, optimizer: Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = (one(x) - y).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert bench.put_off == [False]
    for wanted, found in zip(expected.parameters(), model.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_two_optimizers_that_step_in_turns() -> None:
    expected, model = make(), make()
    for one in (expected, model):
        parameters = list(one.parameters())
        optimizers = [SGD(parameters[:3], lr=0.1, momentum=0.9), Adam(parameters[3:], lr=0.01)]
        if one is model:
            Bench(model, *optimizers)
        for step in range(6):
            x, y = batch(step)
            (one(x) - y).square().mean().backward()
            optimizers[step % 2].step()
            for optimizer in optimizers:
                optimizer.zero_grad()
    for wanted, found in zip(expected.parameters(), model.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_a_step_that_is_not_finite_is_made_by_nobody_in_parts() -> None:
    model = make()
    optimizer = sgd(model)
    bench = Bench(model, optimizer)
    (model(batch(0)[0]) * float("nan")).sum().backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    bench.joined.deferred.put_off(optimizer, False)
    assert bench.joined.deferred.put_off(optimizer, False) is False
    assert not bench.synchronizer.pending
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_sum_that_overflows_ends_the_run() -> None:
    """Every worker's own gradients were finite, so some parameters may be updated already."""
    model = make()
    optimizer = sgd(model)
    bench = Bench(model, optimizer)
    (model(batch(0)[0])).sum().backward()
    optimizer.step()
    for bucket in bench.exchange.buckets[:-1]:
        bucket.flat.fill_(float("inf"))
    with pytest.raises(DivergedError, match=r"order\(ready\)"):
        model(batch(1)[0])


def test_a_frozen_and_an_unused_layer() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.used, self.idle = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(torch.tanh(self.frozen(x)))

    check(Partly)
