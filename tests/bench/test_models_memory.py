"""Peak bytes against arithmetic by hand."""

import torch
from torch import Tensor, nn

from shoal.bench.models_memory import inference_bytes


def test_two_layers() -> None:
    """The most is alive when ReLU has read the first layer's answer and given its own."""
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    parameters = 100 * 50 + 50 + 50 * 10 + 10
    assert inference_bytes(model, [torch.zeros(2, 100)]) == 4 * (parameters + 2 * 100 + 2 * 50 + 2 * 50)


def test_views_and_in_place_take_nothing() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + 1).relu_().view(-1).unsqueeze(0)

    assert inference_bytes(Model(), [torch.zeros(8, 8)]) == 4 * 2 * 64


def test_what_is_kept_for_later_counts() -> None:
    class Skip(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            kept = x + 1
            return (kept * 2 * 3 * 4) + kept

    # kept, and of the chain the one that is read and the one that is written
    assert inference_bytes(Skip(), [torch.zeros(10)]) == 4 * (10 + 3 * 10)


def test_a_shared_parameter_counts_once_and_buffers_count() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("more", torch.zeros(100))
    assert inference_bytes(model, [torch.zeros(1, 4)]) == 4 * (16 + 100 + 4 + 4 + 4)
