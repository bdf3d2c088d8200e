"""The conformance case of codecs."""

from abc import ABC, abstractmethod
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from shoal.core.errors import PayloadError, ShoalError
from shoal.wire import kernels
from shoal.wire.codec import GradientCodec, aligned
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import RESIDUAL, ErrorFeedback

LAYOUTS = {
    "empty": FlatLayout.of([("e", (0,))]),
    "nothing": FlatLayout.of([]),
    "scalar": FlatLayout.of([("s", ())]),
    "odd": FlatLayout.of([("first", (37, 5)), ("second", (3,)), ("third", (1,)), ("fourth", (2, 3, 7))]),
    "blocks": FlatLayout.of([("w", (64, 65)), ("b", (64,)), ("v", (300, 9))]),
    "huge": FlatLayout.of([("w", (600, 500)), ("b", (77,))]),
}
SEEDS = 400
"""Encodings over which an unbiased codec is averaged."""


def sample(layout: FlatLayout, seed: int = 0) -> Tensor:
    """Gradients as they are: most small, few large, each layer of its own size."""
    generator = torch.Generator().manual_seed(seed)
    # Cubed, because gradients have heavier tails than a normal distribution.
    values = torch.randn(layout.numel, generator=generator) ** 3
    for number, part in enumerate(layout.parts):
        values[part.offset : part.end] *= 10.0 ** -(number % 3)
    return values


def mutated(payload: Tensor, number: int) -> Tensor:
    """A payload that something happened to: bits flipped, bytes replaced, cut, made longer, or all of it noise."""
    generator = torch.Generator().manual_seed(number)

    def dice(most: int) -> int:
        return int(torch.randint(max(most, 1), (), generator=generator))

    changed = payload.clone()
    kind = dice(6)
    if kind == 0:
        return changed[: dice(len(changed))].clone()
    if kind == 1:
        return torch.cat([changed, torch.randint(256, (1 + dice(40),), generator=generator).to(torch.uint8)])
    if kind == 2:
        return torch.randint(256, (dice(2 * len(changed)),), generator=generator).to(torch.uint8)
    first = 0 if kind == 3 else dice(len(changed))  # half of the rest goes for the head
    for _ in range(1 + dice(4)):
        at = first + dice(24 if kind == 3 else 8)
        if at < len(changed):
            changed[at] = dice(256)
    return changed


class CodecCase(ABC):
    """Subclass, implement `make`; pytest runs the rest."""

    tolerance = 2e-6
    """Of sent + residual against what there was, relative to the largest value: a few roundings of float32."""
    mutations = 1000
    kernel_tolerance = 0.0
    """Of a kernel against the reference, relative to the largest value; 0 asks for the same bytes."""

    @abstractmethod
    def make(self) -> GradientCodec:
        """The codec under test, without feedback."""

    @pytest.mark.parametrize("shape", LAYOUTS)
    def test_a_payload_is_as_long_as_declared(self, shape: str) -> None:
        codec, layout = self.make(), LAYOUTS[shape]
        payload, _ = codec.encode(sample(layout), layout)
        assert payload.numel() <= codec.max_bytes(layout)
        assert not codec.fixed_size or payload.numel() == codec.max_bytes(layout)
        decoded = codec.decode(payload, layout)
        assert decoded.shape == (layout.numel,)
        assert decoded.isfinite().all()

    def test_any_dtype_and_any_strides(self) -> None:
        codec, values = self.make(), sample(FlatLayout.flat(600)).view(20, 30)
        expected, _ = codec.encode(values.T.contiguous())
        assert torch.equal(codec.encode(values.T)[0], expected)
        assert torch.equal(codec.encode(values.T.double())[0], expected)
        half = values.bfloat16()
        assert torch.equal(codec.encode(half)[0], codec.encode(half.float())[0])

    def test_nothing_given_is_changed(self) -> None:
        codec, layout = ErrorFeedback(self.make()), LAYOUTS["blocks"]
        values, state = sample(layout), codec.init_state(layout)
        before, kept = values.clone(), {name: tensor.clone() for name, tensor in state.items()}
        codec.encode(values, layout, state)
        assert torch.equal(values, before)
        assert all(torch.equal(state[name], tensor) for name, tensor in kept.items())

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("fast", [True, False])
    def test_what_is_not_finite_is_refused_by_name(self, bad: float, fast: bool) -> None:
        layout = LAYOUTS["blocks"]
        values = sample(layout)
        values[layout.parts[2].offset + 5] = bad
        for codec in (self.make(), ErrorFeedback(self.make())):
            with pytest.raises(ShoalError, match="'v' holds NaN or infinity"):
                _encode(codec, values, layout, fast)

    def test_sent_and_residual_are_all_there_was(self) -> None:
        layout = LAYOUTS["blocks"]
        codec = ErrorFeedback(self.make())
        state, total, sent = codec.init_state(layout), torch.zeros(layout.numel), torch.zeros(layout.numel)
        for step in range(5):
            values = sample(layout, step)
            payload, state = codec.encode(values, layout, state, EncodeContext(step=step))
            total += values
            sent += codec.decode(payload, layout)
        # Five times, because errors of five steps add up.
        bound = self.tolerance * 5 * float(total.abs().max())
        torch.testing.assert_close(sent + state[RESIDUAL], total, atol=bound, rtol=0)

    def test_add_adds(self) -> None:
        codec, layout = self.make(), LAYOUTS["odd"]
        payload, _ = codec.encode(sample(layout), layout)
        once = codec.decode(payload, layout)
        twice = once.clone()
        codec.decode_add(payload.clone(), layout, twice)
        torch.testing.assert_close(twice, 2 * once)

    @pytest.mark.parametrize("fast", [True, False])
    def test_put_is_add_to_zeros_whatever_was_there(self, fast: bool) -> None:
        codec, layout = self.make(), LAYOUTS["odd"]
        payload, _ = codec.encode(sample(layout), layout)
        put, added = torch.full((layout.numel,), torch.nan), torch.zeros(layout.numel)
        with nullcontext() if fast else kernels.reference():
            codec.decode_into(aligned(payload), layout, put)
            codec.decode_add(aligned(payload), layout, added)
        assert torch.equal(put, added)

    def test_the_same_moment_gives_the_same_bytes(self) -> None:
        codec, layout = self.make(), LAYOUTS["blocks"]
        values = sample(layout)
        one, two = (codec.encode(values, layout, None, EncodeContext(7, 3, 1, 2))[0] for _ in range(2))
        assert torch.equal(one, two)

    def test_a_kernel_does_what_its_reference_does(self) -> None:
        layout = LAYOUTS["huge"]
        codec = ErrorFeedback(self.make())
        results = []
        for fast in (True, False):
            state, payloads = codec.init_state(layout), []
            for step in range(2):
                payload, state = _encode(codec, sample(layout, step), layout, fast, state, EncodeContext(step=step))
                payloads.append(payload)
            results.append((payloads, _decode(codec, payloads[0], layout, fast), state[RESIDUAL]))
        (bytes_, decoded, rest), (expected_bytes, expected, expected_rest) = results
        if self.kernel_tolerance == 0:
            assert all(torch.equal(a, b) for a, b in zip(bytes_, expected_bytes, strict=True))
            assert torch.equal(decoded, expected)
            assert torch.equal(rest, expected_rest)
            return
        bound = self.kernel_tolerance * float(sample(layout).abs().max())
        torch.testing.assert_close(decoded, expected, atol=bound, rtol=0)

    def test_the_mean_is_right_where_that_is_claimed(self) -> None:
        """Fixed seeds: the outcome is the same every time."""
        codec, layout = self.make(), FlatLayout.of([("w", (20, 16)), ("b", (9,))])
        if not codec.unbiased:
            pytest.skip("claims nothing")
        spread = torch.rand(layout.numel, generator=torch.Generator().manual_seed(1))
        values = torch.copysign(0.2 + 0.8 * spread, sample(layout))
        # In float64, so that rounding is far below the error that is looked for.
        found = torch.stack(
            [
                codec.decode(codec.encode(values, layout, None, EncodeContext(seed=seed))[0], layout).double()
                for seed in range(SEEDS)
            ]
        )
        error = found.std(0) / SEEDS**0.5
        noisy = error > 1e-7
        z = ((found.mean(0) - values) / error)[noisy]
        if len(z):
            # Of a normal distribution 0.3 % lie beyond three standard errors.
            assert float((z.abs() > 3).double().mean()) < 0.03
            assert abs(float(z.sum())) / len(z) ** 0.5 < 4
        # what never varied is exact, or was rounded with a chance too small to be seen in so many draws
        missed = 8 / SEEDS * float((found.amax(0) - found.amin(0)).max()) + 1e-6
        torch.testing.assert_close(found.mean(0).float()[~noisy], values[~noisy], atol=missed, rtol=0)

    def test_hostile_payloads_are_refused_or_decoded(self) -> None:
        self.attack(range(self.mutations))

    def attack(self, numbers: range) -> None:
        codec, layout = self.make(), FlatLayout.of([("w", (16, 12)), ("b", (7,))])
        payload, _ = codec.encode(sample(layout), layout)
        refused = []
        for number in numbers:
            out = torch.zeros(layout.numel)
            try:
                codec.decode_add(mutated(payload, number), layout, out)
            except PayloadError as error:
                refused.append(str(error))
        # Errors are told on one line.
        assert not any("\n" in text for text in refused)
        # Otherwise the mutations would hardly touch what a decoder checks.
        assert len(refused) > len(numbers) // 4

    def test_a_foreign_payload_is_refused(self) -> None:
        codec, layout = self.make(), LAYOUTS["odd"]
        payload, _ = codec.encode(sample(layout), layout)
        with pytest.raises(PayloadError):
            codec.decode(payload, LAYOUTS["blocks"])
        for at, size in ((4, 4), (8, 8), (0, 1), (1, 1)):
            lying = payload.clone()
            lying[at : at + size] = 255
            if not torch.equal(lying, payload) and at != 4:
                with pytest.raises(PayloadError):
                    codec.decode(lying, layout)

    def test_state_is_named_by_layer(self) -> None:
        codec, layout = ErrorFeedback(self.make()), LAYOUTS["blocks"]
        state = codec.init_state(layout)
        named = codec.name_state(state, layout)
        assert {f"{RESIDUAL}.{part.name}" for part in layout.parts} <= set(named)
        named[f"{RESIDUAL}.b"].fill_(3.0)
        assert float(state[RESIDUAL].sum()) == 3.0 * 64


def _encode(
    codec: GradientCodec,
    values: Tensor,
    layout: FlatLayout,
    fast: bool,
    state: dict[str, Tensor] | None = None,
    moment: EncodeContext | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    if fast:
        return codec.encode(values, layout, state, moment)
    with kernels.reference():
        return codec.encode(values, layout, state, moment)


def _decode(codec: GradientCodec, payload: Tensor, layout: FlatLayout, fast: bool) -> Tensor:
    if fast:
        return codec.decode(payload, layout)
    with kernels.reference():
        return codec.decode(payload, layout)
