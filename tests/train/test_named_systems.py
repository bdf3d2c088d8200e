"""What the named systems that already work here are said to do (docs/systems.toml)."""

import ast
import multiprocessing
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from shoal.core.events import StepFinished
from shoal.testing import WorkerWorld, run_world
from shoal.watch.tail import JournalTail

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[dms]*.py"))


@pytest.mark.parametrize(
    "script", [p for p in EXAMPLES if not p.name.startswith(("demo", "serve"))], ids=lambda p: p.name
)
def test_horovod_at_most_five_lines_of_a_script_change_for_training(script):
    """Lines that call Shoal; `run.log` and `run.report` only tell, and need not be there."""
    needed = {"start", "join", "epochs", "shoal"}
    lines = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"run", "shoal"}:
            lines |= {node.lineno} if node.attr in needed else set()
        if isinstance(node, ast.Import) and node.names[0].name == "shoal":
            lines.add(node.lineno)
    assert 3 <= len(lines) <= 5


def test_horovod_fusion_sends_ten_times_fewer_messages():
    def body(world: WorkerWorld):
        model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(60)])
        run = world.start()
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.randn(2, 16)).sum().backward()
        optimizer.step()
        run.close()
        (step,) = [e for e in JournalTail(run.dir / f"worker-{run.rank}.jsonl").read() if isinstance(e, StepFinished)]
        return {"messages": torch.tensor(len(step.done)), "gradients": torch.tensor(len(list(model.parameters())))}

    for result in run_world(2, body):
        assert int(result["messages"]) * 10 <= int(result["gradients"])


def test_bsp_nobody_ends_a_step_that_the_slowest_has_not_begun():
    """The slow worker counts the steps it begins; whoever ends a step finds it counted."""
    begun = torch.zeros(1, dtype=torch.int64).share_memory_()
    released = multiprocessing.get_context("fork").Semaphore(0)

    def body(world: WorkerWorld):
        model = nn.Linear(4, 1)
        run = world.start()
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        seen = []
        for _ in range(6):
            if run.rank == 1:
                assert released.acquire(timeout=60), "the fast worker did not come to this step"
                begun.add_(1)
            else:
                released.release()  # from here on it has nothing to do but to wait
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            seen.append(int(begun))
            optimizer.zero_grad()
        run.close()
        return {"seen": torch.tensor(seen)}

    for result in run_world(2, body):
        assert (result["seen"] >= torch.arange(1, 7)).all()


@pytest.mark.soak("clock")
def test_bsp_a_step_takes_as_long_as_the_slowest_worker():
    """Only lower bounds: nobody can be faster than the slowest; the waiting shows in the fast worker's record."""
    pause = 0.1

    def body(world: WorkerWorld):
        model = nn.Linear(4, 1)
        run = world.start()
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(6):
            if run.rank == 1:
                time.sleep(pause)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        run.close()
        steps = [e for e in JournalTail(run.dir / f"worker-{run.rank}.jsonl").read() if isinstance(e, StepFinished)]
        return {
            "seconds": torch.tensor([s.seconds for s in steps]),
            "wait": torch.tensor([s.exchange_wait for s in steps]),
        }

    fast, slow = run_world(2, body)
    assert len(fast["seconds"]) == len(slow["seconds"]) == 6
    assert fast["seconds"][1:].sum() >= 4 * pause, (
        "five steps from end to end span at least four pauses of the slow one"
    )
    assert fast["wait"].sum() > slow["wait"].sum()
