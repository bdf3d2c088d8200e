"""Replayed computing: real gradients in size and order, no computing, no learning."""

import pytest
import torch
from torch import nn

from shoal.core.errors import UsageError
from shoal.train.members import sort_members
from shoal.train.replay import MEASURED, WARM, replay


class Counting(nn.Module):
    """Counts how often it computes."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)
        self.computed = 0

    def forward(self, x):
        self.computed += 1
        return self.last(torch.relu(self.first(x)))


def make(*more):
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replay(sort_members([model, optimizer, *more], []), lambda: 0.0)
    return model, optimizer


def step(model, optimizer, rows=4):
    arrived = []
    handles = [p.register_post_accumulate_grad_hook(lambda q: arrived.append(q.shape)) for p in model.parameters()]
    model(torch.randn(rows, 3)).square().mean().backward()
    for handle in handles:
        handle.remove()
    optimizer.step()
    optimizer.zero_grad()
    return arrived


def test_after_the_measured_steps_nothing_is_computed_or_learnt():
    model, optimizer = make()
    computed = [step(model, optimizer) for _ in range(WARM + MEASURED)][-1]
    before = [p.clone() for p in model.parameters()]
    assert step(model, optimizer) == computed, "the same gradients in the same order"
    assert model.computed == WARM + MEASURED
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_smaller_last_batch_gets_a_smaller_output():
    model, optimizer = make()
    for _ in range(WARM + MEASURED):
        step(model, optimizer)
    assert model(torch.randn(2, 3)).shape == (2, 2)


def test_evaluation_still_computes():
    model, optimizer = make()
    for _ in range(WARM + MEASURED):
        step(model, optimizer)
    model.eval()
    x = torch.randn(6, 3)
    assert torch.equal(model(x), model.last(torch.relu(model.first(x))))


def test_what_cannot_be_replayed_is_refused():
    with pytest.raises(UsageError, match="one model"):
        make(nn.Linear(1, 1))
    model, _ = make()
    model.last = nn.Identity()
    model.last.forward = lambda x: (x, x)
    with pytest.raises(UsageError, match="one tensor"):
        model(torch.randn(4, 3))
