"""What a script keeps in `run.state`: checked, in every checkpoint, and where a loop of its own goes on from."""

from pathlib import Path
from typing import Any

import pytest
import torch
from loops import data, loss_of, parameters, sgd
from models import make
from torch import Tensor

from shoal.core.errors import UsageError
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.checkpoint.manifest import listed
from shoal.train.script_state import ScriptState


def test_attributes() -> None:
    state = ScriptState({"iter_num": 0, "best": 1e9, "seen": [1, {"a": None}], "mean": torch.zeros(2)})
    state.iter_num += 1
    state.best = float("inf")
    assert (state.iter_num, state.best, state.changes) == (1, float("inf"), 1)
    other = ScriptState({"iter_num": 5, "more": "x"})
    other.load_state_dict(state.state_dict())
    assert (other.iter_num, other.more) == (1, "x")
    with pytest.raises(AttributeError, match=r"no 'steps'; give it a first value in run.state\(steps=…\)"):
        state.steps = 1
    with pytest.raises(AttributeError, match="no 'steps'; it has iter_num, best, seen, mean"):
        _ = state.steps


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "x is a object"),
        ({"a": [len]}, r"x\['a'\]\[0\] is a builtin_function_or_method"),
        ({(1, 2): 3}, "x has the key"),
        (torch.zeros(2, dtype=torch.complex64), "x is a tensor of torch.complex64"),
        ({1, 2}, "x is a set"),
    ],
)
def test_what_does_not_go_into_a_checkpoint_is_refused(value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ScriptState({"x": value})
    state = ScriptState({"x": 0})
    with pytest.raises(UsageError, match=words):
        state.x = value


def test_names_that_are_taken() -> None:
    for name in ("state_dict", "changes", "_x"):
        with pytest.raises(UsageError, match="taken"):
            ScriptState({name: 0})


def batch(iteration: int, rank: int, size: int) -> list[Tensor]:
    return [part[iteration % 8 :: 8][rank::size] for part in data(64).tensors]


def loop(run: Any, iterations: int, early: bool) -> Result:
    """As nanoGPT: batches of its own, and a learning rate that follows from a counter of its own."""
    state = run.state(iter_num=0, best=1e9, trace=torch.zeros(2)) if early else None
    model = make()
    model, optimizer = run.join(model, sgd(model))
    state = state or run.state(iter_num=0, best=1e9, trace=torch.zeros(2))
    first = state.iter_num
    while state.iter_num < iterations:
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + state.iter_num)
        optimizer.zero_grad()
        loss = loss_of(model, *batch(state.iter_num, run.rank, run.size))
        loss.backward()
        optimizer.step()
        state.trace = state.trace + torch.tensor([1.0, float(state.iter_num)])
        if run.is_main:
            state.best = min(state.best, loss.item())
        state.iter_num += 1
    run.close()
    return parameters(model) | {"first": torch.tensor(first), "trace": state.trace}


@pytest.mark.parametrize("early", [True, False], ids=["made before join", "made after it"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_loop_of_its_own_goes_on(size: int, early: bool, tmp_path: Path) -> None:
    """A whole run, and one of 7 iterations that is continued from its newest checkpoint."""

    def body(world: WorkerWorld) -> Result:
        whole = loop(world.start(name="whole", checkpoint="off"), 12, early)
        loop(world.start(name="half", checkpoint="3steps"), 7, early)
        world.group.gather(b"")  # worker 0 has written it
        kept = sorted(listed(world.dir / "half"))[-1]
        rest = loop(world.start(name="rest", resume=kept), 12, early)
        return rest | {f"whole.{name}": value for name, value in whole.items()}

    for result in run_world(size, body):
        assert int(result["first"]) in (3, 6)  # at 6 the one before may still be under way
        for name in [name for name in result if name.startswith("layers")] + ["trace"]:
            assert torch.equal(result[name], result[f"whole.{name}"]), name
