"""A part of the equality proofs over links instead of shared memory."""

import dataclasses

import pytest
from by_links import by_files, by_keys
from loops import adamw, assert_equal, batches, data, loader, parameters, sgd, train
from models import make
from test_works_with import Paths, Words
from torch import nn
from torch.optim import SGD

from shoal.testing.world import Result, WorkerWorld, run_world


@pytest.mark.parametrize(
    ("kind", "optimizer_of", "samples", "group_of"),
    [
        ("mlp", sgd, 33, by_files),
        ("lstm", adamw, 37, by_keys),
        (Paths, adamw, 33, by_files),
        (Words, lambda m: SGD(m.parameters(), lr=0.1), 33, by_keys),
    ],
    ids=["remainder", "lstm", "unused", "sparse"],
)
def test_equals_one_process(kind, optimizer_of, samples: int, group_of) -> None:  # type: ignore[no-untyped-def]
    def body(world: WorkerWorld) -> Result:
        world = dataclasses.replace(world, group=group_of(world))
        run, model = world.start(), make(kind)
        model, optimizer, steps = run.join(model, optimizer_of(model), loader(2, data(samples)))
        train(model, optimizer, (steps for _ in run.epochs(2)))
        return parameters(model)

    model: nn.Module = make(kind)
    train(model, optimizer_of(model), [batches(data(samples), epoch) for epoch in range(2)])
    for result in run_world(2, body):
        assert_equal(result, model)
