"""Training with `factors`: the model of sums to 1e-6, with fewer bytes; what is no product travels whole."""

from collections.abc import Callable

import pytest
import torch
from changing import changing
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.events import WarningRaised
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.run import Run
from shoal.watch.tail import JournalTail
from shoal.wire import kernels

kernels.warm()  # once here instead of once in every worker
BATCH = 6
"""Of each worker."""
Step = Callable[[Run, nn.Module, torch.Tensor], None]


class Layers(nn.Module):
    """Two layers whose factors are shorter than their gradients, one whose are not, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.twice, self.last = nn.Linear(40, 50), nn.Linear(50, 50), nn.Linear(50, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.twice(self.twice(self.first(x).tanh()).tanh()))


class Tied(nn.Module):
    """An embedding whose weights are those of the last layer too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.rows, self.last = nn.Embedding(60, 40), nn.Linear(40, 60)
        self.last.weight = self.rows.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.rows(x[:, 0].abs().mul(10).long() % 60))


def plainly(run: Run, model: nn.Module, x: torch.Tensor) -> None:
    model(x).square().mean().backward()


def accumulated(run: Run, model: nn.Module, x: torch.Tensor) -> None:
    with run.accumulate():
        model(x[:3]).square().mean().backward()
    model(x[3:]).square().mean().backward()


def two_passes(run: Run, model: nn.Module, x: torch.Tensor) -> None:
    """Each is exchanged; the second adds to what the first has left."""
    model(x[:3]).square().mean().backward()
    model(x[3:]).square().mean().backward()


def in_bfloat16(run: Run, model: nn.Module, x: torch.Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()


def train(run: Run, model: nn.Module, step: Step, seed: int) -> Result:
    model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        step(run, model, torch.randn(BATCH, 40, generator=generator))
        optimizer.step()
        optimizer.zero_grad()
    return told(run, model)


def told(run: Run, model: nn.Module) -> Result:
    """The model, the bytes that stood for its gradients, and the warnings."""
    run._journal.flush()
    events = JournalTail(run.dir / f"worker-{run.rank}.jsonl").read()
    warned = sum(isinstance(event, WarningRaised) and event.text.startswith("factors: ") for event in events)
    sent = run._together.joined[0].exchange.observer.sent_bytes
    weights = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
    return {"weights": weights, "sent": torch.tensor(sent), "warned": torch.tensor(warned)}


def compared(model: Callable[[], nn.Module], step: Step, plan: str) -> tuple[list[Result], list[Result]]:
    """What workers end with under `allreduce`, and under `plan`."""

    def body(world: WorkerWorld) -> Result:
        found: Result = {}
        for name, text in (("sums", "allreduce"), ("factors", plan)):
            result = train(world.start(text, name=name), model(), step, 1 + world.group.rank)
            found |= {f"{name}.{key}": tensor for key, tensor in result.items()}
        return found

    results = run_world(2, body)
    sums, factors = (
        [{key.partition(".")[2]: t for key, t in result.items() if key.startswith(name)} for result in results]
        for name in ("sums.", "factors.")
    )
    return sums, factors


@pytest.mark.parametrize(
    ("model", "step", "rows", "shorter", "warned"),
    [
        (Layers, plainly, 2 * BATCH, True, 0),
        (Layers, accumulated, 2 * BATCH, True, 0),
        (Layers, two_passes, 2 * BATCH, True, 2),
        (Layers, in_bfloat16, 2 * BATCH, False, 2),
        (Layers, plainly, BATCH - 1, False, 2),
        (Tied, plainly, BATCH, False, 0),
    ],
    ids=["a layer used twice", "accumulation", "two passes", "autocast", "too many rows", "a tied embedding"],
)
def test_the_model_is_that_of_sums(
    model: Callable[[], nn.Module], step: Step, rows: int, shorter: bool, warned: int
) -> None:
    sums, factors = compared(model, step, f"factors(batch={rows})")
    assert torch.equal(factors[0]["weights"], factors[1]["weights"])
    torch.testing.assert_close(factors[0]["weights"], sums[0]["weights"], atol=1e-6, rtol=0)
    assert (factors[0]["sent"] < 0.7 * sums[0]["sent"]) == shorter
    assert factors[0]["warned"] == warned


def test_uneven_batches_and_a_worker_without_samples() -> None:
    """13 samples in steps of 8: in the last step one worker has four and the other one."""

    def body(world: WorkerWorld) -> Result:
        found: Result = {}
        for plan in ("allreduce", "factors(batch=8)"):
            torch.manual_seed(2)
            data, model = TensorDataset(torch.randn(13, 40)), Layers()
            run = world.start(plan, name=plan.partition("(")[0])
            model, optimizer, loader = run.join(
                model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=4)
            )
            for _ in range(2):
                for (x,) in loader:
                    plainly(run, model, x)
                    optimizer.step()
                    optimizer.zero_grad()
            found |= {f"{plan[:3]}.{key}": tensor for key, tensor in told(run, model).items()}
        return found

    one, two = run_world(2, body)
    assert torch.equal(one["fac.weights"], two["fac.weights"])
    torch.testing.assert_close(one["fac.weights"], one["all.weights"], atol=1e-6, rtol=0)
    assert int(one["fac.warned"]) == 0


def test_a_run_is_switched_to_factors_and_back_and_watches_no_layer_then() -> None:
    plans = ["allreduce", "first.*: factors(6); *: allreduce", "allreduce"]

    def body(world: WorkerWorld) -> Result:
        group, session = changing(world, links=True)
        run = Run(WorkerContext(group, "run", world.dir / "run", plans[0], 0, begun=False), Plan.parse(plans[0]))
        model = Layers()
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        generator = torch.Generator().manual_seed(1 + group.rank)
        watched = []
        for number, plan in enumerate(plans):
            if number:
                session.switch(str(Plan.parse(plan)))
            watched.append(len(model.first._forward_hooks))
            for _ in range(2):
                plainly(run, model, torch.randn(BATCH, 40, generator=generator))
                optimizer.step()
                optimizer.zero_grad()
        assert watched[1] == watched[0] + 1
        assert watched[2] == watched[0]
        return told(run, model)

    one, two = run_world(2, body)
    assert torch.equal(one["weights"], two["weights"])
    assert int(one["warned"]) == 0
