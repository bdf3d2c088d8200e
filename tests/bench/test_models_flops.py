"""The counter against arithmetic by hand: a multiply-add is two operations, biases and norms are not counted."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from shoal.bench.flops import forward_flops
from shoal.bench.models_load import load_table

TABLE = load_table(Path(__file__).parents[2] / "examples/models")


def conv(side: int, ins: int, outs: int, kernel: int = 3) -> int:
    """Multiply-adds of a convolution whose result is `side` pixels wide."""
    return side * side * kernel * kernel * ins * outs


def mlp(w: int) -> int:
    return 784 * w + w * w + w * 10


def alexnet(w: int) -> int:
    features = conv(28, 1, w) + conv(14, w, 3 * w) + conv(7, 3 * w, 6 * w) + conv(7, 6 * w, 4 * w)
    return features + conv(7, 4 * w, 4 * w) + 3 * 3 * 4 * w * 16 * w + 16 * w * 16 * w + 16 * w * 10


def resnet18(w: int) -> int:
    total = conv(28, 1, w) + 4 * conv(28, w, w)
    for side, ins in ((14, w), (7, 2 * w), (4, 4 * w)):  # first block: stride 2 and a projection of the skip
        total += conv(side, ins, 2 * ins) + conv(side, ins, 2 * ins, kernel=1) + 3 * conv(side, 2 * ins, 2 * ins)
    return total + 8 * w * 10


def lstm(w: int) -> int:
    return 28 * (28 + w) * 4 * w + w * 10


def transformer(w: int) -> int:
    """32 characters, two blocks: 12 w² of linear layers and 2 · 32 w of attention for each, 65 letters."""
    return 32 * (2 * (12 * w * w + 2 * 32 * w) + w * 65)


def gcn(w: int) -> int:
    return 12 * (4 * w + 12 * w + w * w + 12 * w) + w * 3


REFERENCES = {
    "mlp": mlp, "alexnet": alexnet, "resnet18": resnet18, "lstm": lstm, "transformer": transformer, "gcn": gcn,
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("times", [1, 2])
def test_within_one_percent_of_the_reference(name: str, times: int) -> None:
    entry = TABLE[name]
    width = times * max(8, entry.narrow)
    *inputs, _ = next(iter(DataLoader(entry.data("test", 1, None))))
    assert forward_flops(entry.make(width=width), inputs) == pytest.approx(2 * REFERENCES[name](width), rel=0.01)


@pytest.mark.parametrize("name", ["googlenet", "resnet50", "densenet", "autoencoder", "gan"])
def test_equals_the_sum_over_layers(name: str) -> None:
    """Where all is convolutions and linear layers: every value of an answer took one column of the weights."""
    entry = TABLE[name]
    model = entry.make(width=8)
    found = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda self, _, answer: found.append(answer.numel() * self.weight[0].numel()))
    *inputs, _ = next(iter(DataLoader(entry.data("test", 1, None))))
    assert forward_flops(model, inputs) == 2 * sum(found) > 0


def test_scales_with_the_batch_and_leaves_onednn_as_it_was() -> None:
    model = TABLE["alexnet"].make(width=4)
    before = torch.backends.mkldnn.enabled
    one, three = (forward_flops(model, [torch.zeros(n, 1, 28, 28)]) for n in (1, 3))
    assert three == 3 * one > 0
    assert torch.backends.mkldnn.enabled == before
