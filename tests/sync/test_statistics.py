"""Running statistics are averaged without a graph that waits for its backward pass noticing it."""

import torch
from torch import Tensor, nn

from shoal.sync.statistics import RunningStatistics
from shoal.wire.bucket import GradientBucket, lay_out


class Scaled(nn.Module):
    """Multiplies by a running peak: its backward pass needs the peak as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("peak", torch.ones(2))
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.peak.copy_(torch.maximum(self.peak, x.abs().amax(0)))
        return x * self.weight * self.peak


def average(statistics: RunningStatistics, others: float) -> None:
    """As if a second worker had `others` in every element."""
    (plan,) = lay_out(statistics.tensors)
    bucket = GradientBucket(plan, torch.zeros(plan.space.numel))
    for slot, place in enumerate(plan.slots):
        statistics.offer(place.index, bucket, slot, 0.5)
    bucket.seal(0.5)
    bucket.flat[: plan.payload] += 0.5 * others
    bucket.flat[plan.payload :] += 0.5
    statistics.take(bucket)


def test_a_graph_keeps_the_buffer_it_has_seen_and_the_layers_get_the_mean() -> None:
    layer = Scaled()
    tied = Scaled()
    tied.peak = layer.peak
    statistics = RunningStatistics([layer, tied])
    output = layer(torch.tensor([[3.0, 5.0]]))
    average(statistics, 1.0)
    output.sum().backward()
    assert torch.equal(layer.weight.grad, torch.tensor([9.0, 25.0]))  # the peak this pass was made with
    assert torch.equal(layer.peak, torch.tensor([2.0, 3.0]))
    assert tied.peak is layer.peak
    layer(torch.tensor([[7.0, 0.0]]))
    average(statistics, 1.0)
    assert torch.equal(layer.peak, torch.tensor([4.0, 2.0]))


def test_batch_norm_keeps_its_tensors_while_a_graph_waits() -> None:
    layer = nn.BatchNorm1d(2, momentum=1.0)
    before, statistics = layer.running_mean, RunningStatistics([layer])
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0]], requires_grad=True)
    output = layer(x)
    average(statistics, 0.0)
    output.square().sum().backward()
    assert layer.running_mean is before
    assert torch.equal(before, torch.tensor([1.0, 2.0]))


def test_without_a_graph_a_buffer_stays_the_same_tensor() -> None:
    layer = Scaled()
    before, statistics = layer.peak, RunningStatistics([layer])
    layer(torch.tensor([[3.0, 5.0]])).sum().backward()
    average(statistics, 1.0)
    assert layer.peak is before
    assert torch.equal(before, torch.tensor([2.0, 3.0]))
