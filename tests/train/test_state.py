"""State as text and tensors, and back."""

import math
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from hypothesis import example, given
from models import make
from torch import Tensor
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR, StepLR

from shoal.core.errors import LayoutError
from shoal.testing.world import WorkerWorld, run_world
from shoal.train.state import LOST, adopt_gradients, adopt_state, flatten, patch, restore

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def tensor(shape: list[int], dtype: torch.dtype) -> Tensor:
    return (torch.arange(math.prod(shape)).reshape(shape) % 2).to(dtype)


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=4)
tensors = st.builds(tensor, st.lists(st.integers(0, 3), max_size=3), st.sampled_from(DTYPES))
values = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


@given(values)
@example({"best": [math.inf, -math.inf, math.nan], "betas": (0.9, 0.999), 0: {"step": torch.tensor(3.0)}})
def test_round_trip(value: Any) -> None:
    sent: list[Tensor] = []
    text = msgspec.json.encode(flatten(value, sent))
    received: list[Tensor] = []
    result = restore(msgspec.json.decode(text), received)
    assert len(sent) == len(received)
    for mine, theirs in zip(received, sent, strict=True):
        mine.copy_(theirs)
    assert same(value, result)


@pytest.mark.parametrize("thing", [print, object(), 2**64, 1j, {1, 2}])
def test_what_does_not_travel_stays_each_workers_own(thing: object) -> None:
    (lost,) = restore(flatten([thing], []), [])
    assert lost is LOST
    state = {"a": [LOST, 2], "b": LOST, "c": (1, LOST), "d": {"e": LOST}, "f": LOST}
    own = {"a": [7, 8], "b": thing, "c": [5], "d": {}}
    assert patch(state, own) == {"a": [7, 2], "b": thing, "c": (1, None), "d": {"e": None}, "f": None}


def test_an_unknown_kind_of_number_is_refused() -> None:
    with pytest.raises(LayoutError, match="complex64"):
        restore(flatten(torch.ones(1, dtype=torch.complex64), []), [])


def schedulers(optimizer: SGD) -> list[LRScheduler]:
    parts: list[LRScheduler] = [LinearLR(optimizer, 0.1), CosineAnnealingLR(optimizer, 9)]
    return [
        StepLR(optimizer, 2, 0.5),
        StepLR(optimizer, 5, 0.9),
        LambdaLR(optimizer, lambda n: 1 / (n + 1)),
        SequentialLR(optimizer, parts, milestones=[3]),
    ]


def test_scheduler_states_are_taken_over() -> None:
    """The workers take their steps before and after: what they do next must be the same."""

    def body(world: WorkerWorld) -> dict[str, Tensor]:
        model = make()
        optimizer = SGD(model.parameters(), lr=1.0)
        kept = schedulers(optimizer)
        optimizer.step()
        for _ in range(4 if world.group.rank == 0 else 1):
            for scheduler in kept if world.group.rank == 0 else reversed(kept):
                scheduler.step()
        adopt_state(world.group, [model], [optimizer], list(model.parameters()))
        for scheduler in kept:
            scheduler.step()
        counts = [s.last_epoch for s in kept] + [s.step_size for s in kept[:2]]
        return {"counts": torch.tensor(counts), "rate": torch.tensor(optimizer.param_groups[0]["lr"])}

    first, second = run_world(2, body)
    assert torch.equal(first["counts"], second["counts"])
    assert first["counts"].tolist() == [5, 5, 5, 5, 2, 5]
    assert first["rate"] == second["rate"]


def test_gradients_are_taken_over() -> None:
    def body(world: WorkerWorld) -> None:
        rank = world.group.rank
        parameters = [torch.zeros(3, requires_grad=True) for _ in range(4)]
        for number, (mine, theirs) in enumerate([(1, 1), (1, 0), (0, 1), (0, 0)]):
            if theirs if rank else mine:
                parameters[number].grad = torch.full((3,), 5.0 + rank)
        adopt_gradients(world.group, parameters)
        assert [p.grad is None for p in parameters] == [False, False, True, True]
        assert all(float(p.grad[2]) == 5.0 for p in parameters[:2] if p.grad is not None)

    run_world(2, body)
