"""Pieces of largest magnitude first, within a budget."""

import numpy as np
import pytest
import torch
from torch import nn

from shoal.wire.codecs import largest
from shoal.wire.codecs.largest import LargestCodec, choose, elements, spans, weigh, within
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import ErrorFeedback

LAYOUT = FlatLayout.of([("w", (10, 100)), ("empty", (0,)), ("b", (7,))])


def test_pieces_never_span_two_layers() -> None:
    assert spans(LAYOUT).tolist() == [[0, 256], [256, 512], [512, 768], [768, 1000], [1000, 1007]]
    assert within(LAYOUT.parts[2], LAYOUT).tolist() == [False] * 4 + [True]
    assert elements(np.array([3, 4]), LAYOUT).tolist() == list(range(768, 1007))


def test_a_small_layer_with_a_large_gradient_goes_first() -> None:
    values = torch.full((1007,), 0.1)
    values[1000:] = 1.0
    codec = ErrorFeedback(LargestCodec(1200))
    payload, state = codec.encode(values, LAYOUT)
    decoded = codec.decode(payload, LAYOUT)
    assert decoded[1000:].tolist() == [1.0] * 7
    assert 0 < int((decoded != 0).sum()) < 1007
    assert torch.equal(decoded + state["residual"], values)
    assert payload.numel() <= 1200


def test_at_least_one_piece_travels() -> None:
    weights = [weigh(torch.arange(1007.0), LAYOUT)]
    assert [len(chosen) for chosen in choose(weights, [LAYOUT], 1)] == [1]


def test_what_must_not_go_does_not() -> None:
    weights = weigh(torch.arange(1007.0), LAYOUT)
    weights[:] = -1.0
    assert [len(chosen) for chosen in choose([weights], [LAYOUT], 10**6)] == [0]


def loss_after(order: str, monkeypatch: pytest.MonkeyPatch, steps: int = 60) -> float:
    """Of a network whose gradients differ much from piece to piece, when a tenth of them travels a step."""
    generator = torch.Generator().manual_seed(0)
    draw = np.random.default_rng(0)
    if order == "random":
        monkeypatch.setattr(largest, "weigh", lambda whole, layout: draw.random(len(spans(layout)), np.float32))
    inputs = torch.randn(256, 400, generator=generator) * torch.logspace(0, -3, 400)
    labels = inputs @ torch.randn(400, 4, generator=generator)
    model = nn.Linear(400, 4)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    layout = FlatLayout.of([("weight", (400, 4)), ("bias", (4,))])
    codec = ErrorFeedback(LargestCodec(1400))
    state = codec.init_state(layout)
    for _ in range(steps):
        gradients = torch.autograd.grad((model(inputs) - labels).square().mean(), list(model.parameters()))
        flat = torch.cat([gradients[0].T.reshape(-1), gradients[1]])
        payload, state = codec.encode(flat, layout, state)
        with torch.no_grad():
            step = codec.decode(payload, layout)
            model.weight -= 0.5 * step[:1600].view(400, 4).T
            model.bias -= 0.5 * step[1600:]
    return (model(inputs) - labels).square().mean().item()


def test_bosen_largest_first_learns_faster_than_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wei et al. 2015: with the same bytes, what matters most first."""
    first = loss_after("largest", monkeypatch)
    assert first < 0.8 * loss_after("random", monkeypatch)
