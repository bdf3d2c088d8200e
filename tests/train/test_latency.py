"""How long the trained model answers: which sample, which model, and what cannot be measured."""

import pytest
import torch
from torch import nn

from shoal.core.events import LATENCY_VARIABLE as VARIABLE
from shoal.testing import WorkerWorld, run_world
from shoal.train.latency import PASSES, InferenceLatency, latency_from_environment, one_sample


class Odd(nn.Module):
    """Refuses fewer than two rows, as a graph of one node may."""

    def forward(self, x):
        if len(x) < 2:
            raise ValueError("too few")
        return x


class Noting(nn.Linear):
    """Notes how it is called."""

    def __init__(self):
        super().__init__(3, 2)
        self.calls = []

    def forward(self, x):
        self.calls.append((len(x), self.training, torch.is_grad_enabled()))
        return super().forward(x)


def after(model, *inputs):
    latency = InferenceLatency()
    latency.watch([model])
    if inputs:
        model(*inputs)
    return latency.measure()


def test_one_sample_in_evaluation_without_gradients():
    model = Noting()
    answered = after(model, torch.randn(8, 3))
    assert answered.why == ""
    assert 0 < answered.seconds <= answered.p99
    assert 1 <= answered.passes <= PASSES
    assert model.calls[0] == (8, True, True)
    assert set(model.calls[1:]) == {(1, False, False)}
    assert model.training, "as it was before"


def test_the_sample_is_taken_once_and_is_a_copy():
    model, x = nn.Linear(3, 2), torch.randn(8, 3)
    latency = InferenceLatency()
    latency.watch([model])
    model(x)
    assert not model._forward_pre_hooks
    (kept,), _ = latency._sample
    x.zero_()
    assert kept.abs().sum() > 0


def test_all_tensors_with_as_many_rows_are_cut():
    args, named = one_sample((torch.randn(4, 2), torch.eye(3), 7), {"mask": torch.ones(4), "scale": torch.tensor(2.0)})
    assert [args[0].shape, args[1].shape, args[2]] == [(1, 2), (3, 3), 7]
    assert (named["mask"].shape, named["scale"].shape) == ((1,), ())


def test_what_cannot_be_measured_is_said():
    assert after(nn.Linear(3, 2)).why == "the model was never called"
    assert after(Odd(), torch.randn(4, 2)).why == "not for one sample: ValueError"
    two = InferenceLatency()
    two.watch([nn.Linear(1, 1), nn.Linear(1, 1)])
    assert two.measure().why == "2 models"


def test_only_worker_0_and_only_where_it_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert latency_from_environment(True) is None
    monkeypatch.setenv(VARIABLE, "1")
    assert latency_from_environment(True) is not None
    assert latency_from_environment(False) is None


def test_a_run_records_it_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "1")

    def body(world: WorkerWorld):
        run = world.start()
        model = nn.Linear(3, 2)
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        run.close()
        lines = (run.dir / f"worker-{run.rank}.jsonl").read_text().splitlines()
        return {"answered": torch.tensor([sum('"answered"' in line for line in lines)])}

    assert [result["answered"].item() for result in run_world(2, body)] == [1, 0]
