"""Every model of the table trains under every plan; what is synchronous equals one process with the whole batch.

In double precision: in single, the last bits of a gradient summed in another order grow to 1e-4 in three steps of a
narrow ResNet-50, with or without Shoal, and a bound that lets them pass would let mistakes pass.
"""

import shutil
import sys
from functools import cache
from itertools import product
from pathlib import Path

import forked
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from shoal.bench.models_load import load_table
from shoal.core.errors import UsageError
from shoal.data.order import order
from shoal.plan.plan import Plan
from shoal.plan.rules import check
from shoal.plan.terms import TERMS
from shoal.testing.world import Result, WorkerWorld, run_world

EXAMPLES = Path(__file__).parents[2] / "examples"
TABLE = load_table(EXAMPLES / "models")
NETWORKS_WITH_NORM = ("googlenet", "resnet18", "resnet50", "densenet", "gan")
WORKERS, STEPS, BATCH = 2, 3, 4
"""BATCH samples of all workers in a step."""


def plans(optimizers: int) -> list[str]:
    """Every exchange with every pace that two workers may run by themselves, in their default form.

    Servers are processes of the launcher: `tests/train/test_server_plans.py` trains through them. Late gradients are
    for one optimizer: `tests/train/test_delayed_plans.py` shows that several are refused. Datagrams carry single
    precision alone: `tests/sync/datagrams`.
    """
    of = {axis: [name for name, term in TERMS.items() if term.axis == axis] for axis in ("exchange", "pace")}
    found = (_legal(f"{e}, {p}") for e, p in product(of["exchange"], of["pace"]) if e not in ("server", "datagrams"))
    return [str(plan) for plan in found if plan and (optimizers == 1 or plan.pace.name != "stale")]


def _legal(text: str) -> Plan | None:
    try:
        plan = Plan.parse(text)
        check(plan, WORKERS)
    except UsageError:
        return None
    return plan


def make(name: str, **options: object) -> nn.Module:
    torch.manual_seed(3)
    return TABLE[name].make(width=TABLE[name].narrow, **options).double()


def sgd(name: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    return TABLE[name].optimizers(model, torch.optim.SGD, lr=0.01, momentum=0.9)


def train(name: str, model: nn.Module, optimizers: list, batches: object) -> Result:
    doubled = ([t.double() if t.is_floating_point() else t for t in batch] for batch in batches)
    losses = [TABLE[name].step(model, optimizers, batch) for batch in doubled]
    return {"losses": torch.stack(losses), **{n: p.detach().clone() for n, p in model.named_parameters()}}


def together(name: str, plan: str, **options: object) -> list[Result]:
    return under_plans(name, [plan], **options)[plan]


def under_plans(name: str, plans: list[str], **options: object) -> dict[str, list[Result]]:
    """What the workers come to under each plan, in runs one after the other."""

    def body(world: WorkerWorld) -> Result:
        found: Result = {}
        for number, plan in enumerate(plans):
            entry, run, model = TABLE[name], world.start(plan, name=f"run{number}"), make(name, **options)
            optimizers = sgd(name, model)
            loader = DataLoader(entry.data("train", STEPS * BATCH, None), batch_size=BATCH // WORKERS, shuffle=True)
            model, *optimizers, loader = run.join(model, *optimizers, loader)
            found |= {f"{number} {key}": value for key, value in train(name, model, optimizers, loader).items()}
        return found

    results = run_world(WORKERS, body)
    return {plan: [_of(number, result) for result in results] for number, plan in enumerate(plans)}


def _of(number: int, result: Result) -> Result:
    return {key.partition(" ")[2]: value for key, value in result.items() if key.startswith(f"{number} ")}


@cache
def single(name: str, rank: int | None) -> Result:
    """One process without Shoal: with the whole batches, or with the part that worker `rank` gets of each."""
    entry, model = TABLE[name], make(name)
    data = entry.data("train", STEPS * BATCH, None)
    indices = torch.tensor(order(0, 0, 0, STEPS * BATCH)).split(BATCH)
    parts = indices if rank is None else [whole.chunk(WORKERS)[rank] for whole in indices]
    batches = [
        [torch.stack(column) for column in zip(*(data[i] for i in part.tolist()), strict=True)] for part in parts
    ]
    return train(name, model, sgd(name, model), batches)


def assert_close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)


UNDER_EVERY_PLAN = ("mlp", "alexnet", "lstm", "autoencoder", "gan", "gcn")
"""One of each family; `make soak` trains the others of a family under every plan too."""


@pytest.mark.parametrize(
    "name", [name if name in UNDER_EVERY_PLAN else pytest.param(name, marks=pytest.mark.soak) for name in TABLE]
)
def test_trains_under_every_plan(name: str) -> None:
    for plan, results in under_plans(name, plans(len(sgd(name, make(name))))).items():
        check_plan(name, plan, results)


@pytest.mark.parametrize("name", [name for name in TABLE if name not in UNDER_EVERY_PLAN])
def test_trains_as_one_process_does(name: str) -> None:
    check_plan(name, plan := "allreduce, every(1)", together(name, plan))


def check_plan(name: str, plan: str, results: list[Result]) -> None:
    assert all(tensor.isfinite().all() for result in results for tensor in result.values())
    if plan == "allreduce, every(1)":  # one process with the whole batch
        assert_close(torch.stack([result["losses"] for result in results]).mean(0), single(name, None)["losses"])
        expected = [single(name, None)] * WORKERS
    elif plan == "alone, every(1)":  # one process with this worker's part of it
        expected = [single(name, rank) for rank in range(WORKERS)]
        assert not torch.equal(results[0]["losses"], results[1]["losses"])
    else:
        return
    for result, wanted in zip(results, expected, strict=True):
        for parameter in wanted.keys() - {"losses"}:
            assert_close(result[parameter], wanted[parameter])


@pytest.mark.parametrize("name", NETWORKS_WITH_NORM)
def test_batch_norm_trains_and_workers_agree(name: str) -> None:
    """Its statistics are of the local part of a batch, so it need not equal one process."""
    first, second = together(name, "allreduce, every(1)", norm="batch")
    assert any("running" in n for n, _ in make(name, norm="batch").named_buffers())
    assert first["losses"].isfinite().all()
    assert all(torch.equal(first[n], second[n]) for n in first.keys() - {"losses"})


@pytest.mark.parametrize("name", TABLE)
def test_learns_at_its_default_width(name: str) -> None:
    entry = TABLE[name]
    torch.manual_seed(0)
    model = entry.make()
    optimizers = entry.optimizers(model, lr=1e-3)
    batch = next(iter(DataLoader(entry.data("train", 8, None), batch_size=8)))
    losses = [float(entry.step(model, optimizers, batch)) for _ in range(8)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_resnet_has_as_many_layers_as_its_name_says(depth: int) -> None:
    resnet = sys.modules[TABLE["resnet18"].make.__module__].resnet
    model = resnet(depth, width=2)
    on_the_way = [m for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear) and "skip" not in n]
    assert len(on_the_way) == depth
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


def test_the_two_parts_of_a_gan_learn_by_their_own_loss() -> None:
    entry, model = TABLE["gan"], make("gan")
    noise, real = (tensor.double() for tensor in entry.data("train", 8, None)[:8])
    entry.losses["critic"](model, noise, real).backward()
    assert all(p.grad is None for p in model.maker.parameters())
    critic, maker = entry.optimizers(model, torch.optim.SGD, lr=0.1)
    held = {id(p) for group in critic.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.critic.parameters()}
    assert held.isdisjoint(id(p) for group in maker.param_groups for p in group["params"])


def zoo(folder: Path, *words: str) -> forked.Outcome:
    def body() -> None:
        for name in ("models", "mnist", "shakespeare"):  # a test may have imported another `models`
            sys.modules.pop(name, None)
        forked._command(["run", "--workers", "2", "--json", str(EXAMPLES / "zoo.py"), *words])

    done = forked.Forked(folder, body).wait()
    shutil.rmtree(folder / "runs", ignore_errors=True)
    return done


@pytest.mark.parametrize(("name", "metric", "bound"), [("mlp", "accuracy", 0.9), ("gcn", "accuracy", 0.6)])
def test_zoo_learns_what_it_made_up(tmp_path: Path, name: str, metric: str, bound: float) -> None:
    done = zoo(tmp_path, "--model", name, "--limit", "1024", "--batch", "16", "--lr", "0.01")
    assert done.code == 0, done.err
    assert done.json["metrics"][metric] > bound


def test_zoo_trains_a_gan(tmp_path: Path) -> None:
    done = zoo(tmp_path, "--model", "gan", "--limit", "64", "--epochs", "1", "--width", "8")
    assert done.code == 0, done.err
    assert set(done.json["metrics"]) == {"critic_loss", "maker_loss"}


def test_zoo_without_its_files_says_which(tmp_path: Path) -> None:
    done = zoo(tmp_path, "--model", "lstm", "--data", str(tmp_path))
    assert done.code != 0
    assert "no train-images-idx3-ubyte.gz" in done.err
