"""HALP: SVRG in few bits closes in on the solution where low-precision SGD stops."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.errors import UsageError
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import error_of, launch_world

SAMPLES, WIDTH, BATCH = 96, 8, 8
STEPS = SAMPLES // BATCH
"""In an epoch; those make the anchor's gradient exact."""


def problem() -> TensorDataset:
    """Least squares, strongly convex, with noise: the gradient of a batch is far from zero at the solution."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    y = x @ torch.randn(WIDTH, 1, generator=generator) + 0.5 * torch.randn(SAMPLES, 1, generator=generator)
    return TensorDataset(x, y)


def floor() -> float:
    """The smallest loss there is."""
    x, y = problem().tensors
    return loss_at(torch.linalg.lstsq(x.double(), y.double()).solution)


def loss_at(weight: Tensor) -> float:
    x, y = problem().tensors
    return float((x.double() @ weight.double() - y.double()).square().mean())


def curvature() -> float:
    x = problem().tensors[0].double()
    return float(torch.linalg.eigvalsh(2 * x.T @ x / SAMPLES)[0])


def plan(bits: int = 8) -> str:
    return f"halp(bits={bits}, mu={curvature():.4f}, anchor={STEPS}, inner={2 * STEPS})"


def descend(world: WorkerWorld, text: str, epochs: int, name: str = "run") -> Tensor:
    run = world.start(text, name=name)
    torch.manual_seed(2)
    model = nn.Linear(WIDTH, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    loader = DataLoader(problem(), batch_size=BATCH // run.size, shuffle=True)
    model, optimizer, loader = run.join(model, optimizer, loader)
    for _ in run.epochs(epochs):
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
    return model.weight.detach().clone()


def svrg(epochs: int) -> Tensor:
    """The same in full precision, by hand, in one process."""
    torch.manual_seed(2)
    weight = nn.Linear(WIDTH, 1, bias=False).weight.detach().clone().view(-1, 1)
    x, y = problem().tensors
    generator = torch.Generator().manual_seed(1)

    def gradient(at: Tensor, rows: Tensor) -> Tensor:
        return 2 * x[rows].T @ (x[rows] @ at - y[rows]) / len(rows)

    for _ in range(epochs // 3):
        anchor, full = weight.clone(), gradient(weight, torch.arange(SAMPLES))
        for _ in range(2):
            for rows in torch.randperm(SAMPLES, generator=generator).split(BATCH):
                weight = weight - 0.02 * (gradient(weight, rows) - gradient(anchor, rows) + full)
    return weight


@pytest.mark.soak("convergence")
def test_de_sa_eight_bits_go_below_the_floor_of_low_precision_sgd() -> None:
    """8 bits of fixed point for SGD with a range that holds the solution, against 8 bits round an anchor."""

    def body(world: WorkerWorld):
        return {
            "halp": descend(world, plan(), 45, "halp"),
            "sgd": descend(world, "weights(bits=8, frac=5)", 45, "sgd"),
            "full": descend(world, "", 45, "full"),
        }

    (found,) = run_world(1, body)
    above = {name: loss_at(weight.view(-1, 1)) - floor() for name, weight in found.items()}
    above["svrg"] = loss_at(svrg(45)) - floor()
    assert above["halp"] < 1e-3 * above["sgd"], above
    assert above["halp"] < 1e-2 * above["full"], "the noise of batches does not stop it either"
    assert above["halp"] < 100 * max(above["svrg"], 1e-12), above


def test_workers_stay_one_model_and_find_the_solution_together() -> None:
    def body(world: WorkerWorld):
        return {"weight": descend(world, plan(), 30)}

    one, two = run_world(2, body)
    assert torch.equal(one["weight"], two["weight"])
    assert loss_at(one["weight"].view(-1, 1)) - floor() < 1e-5


def test_anchor_steps_change_nothing_and_inner_steps_stay_on_the_grid() -> None:
    def body(world: WorkerWorld):
        run = world.start("halp(bits=4, mu=0.5, anchor=2, inner=3)")
        model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.3), nn.BatchNorm1d(5), nn.Linear(5, 1))
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        halp = run._together.joined[0].precision["halp"]
        x, moved = torch.randn(12, 3), []
        before = model[0].weight.detach().clone()
        for step in range(10):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            moved.append(not torch.equal(before, model[0].weight))
            before = model[0].weight.detach().clone()
            if step % 5 >= 2:
                levels = (model[0].weight.detach() - halp.state()["anchor.0.weight"]).double() / halp.state()["scale"]
                torch.testing.assert_close(levels, levels.round(), atol=1e-2, rtol=0)
                assert float(levels.abs().max()) < 7.5
        assert int(model[2].num_batches_tracked) == 10, "statistics are counted once"
        return {"moved": torch.tensor(moved)}

    (found,) = run_world(1, body)
    moved = found["moved"].tolist()
    assert not any(moved[at] for at in (0, 1, 5, 6))
    assert any(moved[2:5])


def test_the_correction_is_exact_where_weights_have_not_moved() -> None:
    """At the anchor both gradients are equal, dropout and all: what is left is the anchor's own."""

    def body(world: WorkerWorld):
        run = world.start("halp(bits=8, mu=1.0, anchor=1, inner=5)")
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 1))
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.randn(12, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        model(torch.randn(12, 3)).square().mean().backward()
        assert all(float(p.grad.abs().max()) < 1e-6 for p in model.parameters())

    run_world(1, body)


def test_a_pass_that_goes_another_way_is_refused() -> None:
    def body(world: WorkerWorld):
        run = world.start("halp(bits=8, mu=1.0, anchor=1, inner=5)")
        model, optimizer = run.join(model := nn.Linear(3, 1), torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(2):
            torch.autograd.backward([model(torch.ones(2, 3)).sum()])
            optimizer.step()

    results, codes = launch_world(1, body)
    assert codes == [1]
    assert "a backward pass did not begin with backward() of a loss" in error_of(results[0])


@pytest.mark.parametrize("case", ["two models", "strange parameter", "lbfgs"])
def test_what_it_cannot_take_is_refused(case: str) -> None:
    def body(world: WorkerWorld):
        run = world.start("halp")
        one, two, extra = nn.Linear(2, 2), nn.Linear(2, 2), nn.Parameter(torch.ones(2))
        things = {
            "two models": [one, two, torch.optim.SGD([*one.parameters(), *two.parameters()])],
            "strange parameter": [one, torch.optim.SGD([*one.parameters(), extra])],
            "lbfgs": [one, torch.optim.LBFGS(one.parameters())],
        }
        with pytest.raises(UsageError, match=r"^halp\(") as refused:
            run.join(*things[case])
        assert "\n" not in str(refused.value)

    run_world(1, body)
