"""A part of the above by gloo instead of shared memory."""

import pytest
from loops import adamw, assert_equal, batches, data, loader, parameters, sgd, train
from models import make
from test_works_with import Paths, Words
from torch import nn
from torch.optim import SGD

from shoal.testing.world import Result, WorkerWorld, run_world


@pytest.mark.parametrize(
    ("kind", "optimizer_of", "samples"),
    [("mlp", sgd, 33), ("lstm", adamw, 37), (Paths, adamw, 33), (Words, lambda m: SGD(m.parameters(), lr=0.1), 33)],
    ids=["remainder", "lstm", "unused", "sparse"],
)
def test_equals_one_process(kind, optimizer_of, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("SHOAL_ENGINE", "collective")

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make(kind)
        model, optimizer, steps = run.join(model, optimizer_of(model), loader(2, data(samples)))
        train(model, optimizer, (steps for _ in run.epochs(2)))
        return parameters(model)

    model: nn.Module = make(kind)
    train(model, optimizer_of(model), [batches(data(samples), epoch) for epoch in range(2)])
    for result in run_world(2, body):
        assert_equal(result, model)
