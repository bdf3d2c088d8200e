"""Wrappers: what they conserve, and what they leave alone."""

from contextlib import nullcontext

import pytest
import torch

from shoal.core.errors import PayloadError, ShoalError, UsageError
from shoal.testing.codec import mutated, sample
from shoal.wire import kernels
from shoal.wire.chain import chain
from shoal.wire.codecs.cast import Fp16Codec
from shoal.wire.codecs.int8 import Int8Codec
from shoal.wire.codecs.layerk import LayerKCodec
from shoal.wire.codecs.lowrank import LowRankCodec
from shoal.wire.codecs.onebit import OneBitCodec
from shoal.wire.codecs.topk import TopKCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.redeal import merge, split
from shoal.wire.settings import CodecWrapping
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.momentum import MomentumCorrection
from shoal.wire.wrappers.parts import PartialCodec
from shoal.wire.wrappers.warmup import RatioWarmUp

LAYOUT = FlatLayout.of([("a.weight", (40, 30)), ("a.bias", (40,)), ("norm.weight", (40,)), ("b.weight", (9, 40))])


def test_tensors_of_one_dimension_travel_as_they_are():
    codec, values = PartialCodec(TopKCodec(0.01)), sample(LAYOUT)
    payload, _ = codec.encode(values, LAYOUT)
    decoded = codec.decode(payload, LAYOUT)
    assert torch.equal(decoded[1200:1280], values[1200:1280])
    assert int((decoded[:1200] != 0).sum()) < 40
    assert payload.numel() <= codec.max_bytes(LAYOUT)


def test_by_size_and_by_name():
    values = sample(LAYOUT)
    everything = PartialCodec(OneBitCodec(), least=0)
    assert len(everything.decode(everything.encode(values, LAYOUT)[0], LAYOUT)[1200:1240].unique()) == 2
    some = PartialCodec(OneBitCodec(), least=41, words=("b.w",))
    decoded = some.decode(some.encode(values, LAYOUT)[0], LAYOUT)
    assert torch.equal(decoded[1200:], values[1200:])


def test_parts_survive_attacks():
    codec = PartialCodec(ErrorFeedback(TopKCodec(0.1)))
    payload, _ = codec.encode(sample(LAYOUT), LAYOUT)
    refused = 0
    for number in range(2000):
        try:
            codec.decode_add(mutated(payload, number), LAYOUT, torch.zeros(LAYOUT.numel))
        except PayloadError:
            refused += 1
    assert refused > 500


def test_momentum_correction_sends_what_sgd_with_momentum_would():
    """With a ratio of 1 nothing waits: each step sends the gradient itself, for masking lets go of every velocity."""
    values = sample(LAYOUT)
    masked, kept = MomentumCorrection(LayerKCodec(1.0), 0.9), MomentumCorrection(LayerKCodec(1.0), 0.9, masking=False)
    for codec, expected in ((masked, 3 * values), (kept, (1 + 1.9 + 2.71) * values)):
        state, total = codec.init_state(LAYOUT), torch.zeros(LAYOUT.numel)
        for _ in range(3):
            payload, state = codec.encode(values, LAYOUT, state)
            total += codec.decode(payload, LAYOUT)
        torch.testing.assert_close(total, expected)


def test_momentum_conserves_velocities():
    codec, values = MomentumCorrection(LayerKCodec(0.05), 0.5, masking=False), sample(LAYOUT)
    state, sent, velocity, due = codec.init_state(LAYOUT), torch.zeros(LAYOUT.numel), 0 * values, 0 * values
    for step in range(6):
        payload, state = codec.encode(values, LAYOUT, state, EncodeContext(step=step))
        sent += codec.decode(payload, LAYOUT)
        velocity = 0.5 * velocity + values
        due += velocity
    torch.testing.assert_close(sent + state["residual"], due, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    "codec", [LayerKCodec(0.05), TopKCodec(0.02), TopKCodec(0.05, Int8Codec(64)), LayerKCodec(1.0)]
)
@pytest.mark.parametrize("masking", [True, False])
def test_momentum_by_the_kernel_is_momentum_by_torch(codec, masking):
    """To the bit: payloads, velocity and residual."""
    wrapped = MomentumCorrection(codec, 0.9, masking=masking)
    results = []
    for slow in (False, True):
        state = wrapped.init_state(LAYOUT)
        payloads = []
        for step in range(4):
            with kernels.reference() if slow else nullcontext():
                payload, state = wrapped.encode(sample(LAYOUT, step), LAYOUT, state, EncodeContext(step=step))
            payloads.append(payload)
        results.append([*payloads, state["velocity"], state["residual"]])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("slow", [False, True])
def test_momentum_refuses_what_is_not_finite_by_name(slow):
    values = sample(LAYOUT)
    values[LAYOUT.parts[2].offset] = float("nan")
    with kernels.reference() if slow else nullcontext(), pytest.raises(ShoalError, match=r"'norm\.weight' holds NaN"):
        MomentumCorrection(LayerKCodec(0.05)).encode(values, LAYOUT)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("codec", [MomentumCorrection(LayerKCodec(0.05)), ErrorFeedback(TopKCodec(0.05))])
def test_a_residual_that_is_not_finite_is_refused_by_name(codec, slow):
    state = codec.init_state(LAYOUT)
    state["residual"][LAYOUT.parts[3].offset + 7] = float("inf")
    with kernels.reference() if slow else nullcontext(), pytest.raises(ShoalError, match=r"'b\.weight' holds NaN"):
        codec.encode(sample(LAYOUT), LAYOUT, state)


def test_clipping_is_by_layer():
    values = torch.zeros(LAYOUT.numel)
    values[:1200], values[1200:] = 1.0, 1e-3
    codec = MomentumCorrection(LayerKCodec(1.0), 0.0, clip=1.0)
    decoded = codec.decode(codec.encode(values, LAYOUT)[0], LAYOUT)
    assert float(decoded[:1200].norm()) == pytest.approx(1.0, abs=1e-4)
    assert torch.equal(decoded[1200:], values[1200:])


def test_a_warm_up_tightens():
    codec = RatioWarmUp(ErrorFeedback(TopKCodec(0.01)), 0.01, 10)
    state, sizes = codec.init_state(LAYOUT), []
    for step in range(12):
        payload, state = codec.encode(sample(LAYOUT, step), LAYOUT, state, EncodeContext(step=step))
        assert payload.numel() <= codec.max_bytes(LAYOUT)
        codec.decode(payload, LAYOUT)
        sizes.append(payload.numel())
    assert codec.ratio_at(0) == 0.25
    assert codec.ratio_at(10) == codec.ratio_at(99) == 0.01
    assert sizes[0] > 5 * sizes[-1]


def test_a_residual_that_decays_forgets():
    codec, values = ErrorFeedback(TopKCodec(0.05), decay=0.5), sample(LAYOUT)
    _, state = codec.encode(values, LAYOUT)
    before = state["residual"].clone()
    _, state = codec.encode(torch.zeros_like(values), LAYOUT, state)
    kept = state["residual"] != 0
    torch.testing.assert_close(state["residual"][kept], before[kept] / 2)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_what_waits_is_conserved_when_the_number_of_workers_changes(workers):
    codec = ErrorFeedback(LowRankCodec(1))
    states = [codec.encode(sample(LAYOUT, worker), LAYOUT)[1] for worker in range(3)]
    dealt = split(merge(states), workers)
    total = sum(state["residual"] for state in states)
    torch.testing.assert_close(sum(state["residual"] for state in dealt), total)
    assert torch.equal(dealt[0]["q.a.weight"], states[0]["q.a.weight"])
    with pytest.raises(UsageError):
        merge([states[0], {}])


@pytest.mark.parametrize(
    ("first", "second", "wrapping", "words"),
    [
        (OneBitCodec(), Int8Codec(), CodecWrapping(), "only a sparsifier's values are coded again"),
        (TopKCodec(0.1), TopKCodec(0.1), CodecWrapping(), "what was chosen is not chosen again"),
        (OneBitCodec(), None, CodecWrapping(warmup=5), "no ratio to tighten"),
        (OneBitCodec(), None, CodecWrapping(momentum=0.9), "momentum around onebit"),
        (Fp16Codec(), None, CodecWrapping(least=5), "by_size and by_name do not go with fp16"),
    ],
)
def test_what_does_not_compose_is_refused(first, second, wrapping, words):
    with pytest.raises(UsageError, match=words):
        chain(first, second, wrapping)
