"""What a codec says it calls is what it calls: a plan's kernels are compiled beforehand, and no others."""

import pytest
import torch

from shoal.plan.compose import compose
from shoal.plan.plan import Plan
from shoal.wire import kernels
from shoal.wire.codec import GradientCodec, kernels_of
from shoal.wire.codecs.largest import LargestCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout

CHAINS = (
    *("fp16", "bf16", "int8", "fixed", "onebit", "twobit", "ternary", "ternary(packing=golomb)", "qsgd", "nonzero"),
    *(
        "topk(0.01)",
        "randomk(0.01)",
        "threshold(0.5)",
        "significant(0.05)",
        "dgc(0.01, clip=1.0)",
        "esgd(0.01)",
        "lowrank(2)",
        "dorefa(g=4)",
    ),
    *("topk(0.01), int8", "topk(0.01), fp16", "topk(0.01), warmup(10)", "randomk(0.1), int8"),
)
LAYOUT = FlatLayout.of([("a", (30, 256)), ("b", (256,)), ("c", (70, 512)), ("d", (4, 4))])


def called(codec: GradientCodec, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the kernels in payloads of full and of nearly empty gradients."""
    names: set[str] = set()
    real = kernels.get
    monkeypatch.setattr(kernels, "get", lambda name: names.add(name) or real(name))
    for density in (1.0, 0.01):
        values = torch.randn(LAYOUT.numel) * (torch.rand(LAYOUT.numel) < density)
        values[-16:] = 1.0  # a layer in which run lengths save nothing
        out = torch.zeros(codec.max_bytes(LAYOUT), dtype=torch.uint8)
        length = codec.encode_into(values, LAYOUT, codec.init_state(LAYOUT), EncodeContext(), out)
        codec.decode_add(out[:length], LAYOUT, torch.zeros(LAYOUT.numel))
        codec.decode_into(out[:length], LAYOUT, torch.zeros(LAYOUT.numel))
    return names


@pytest.mark.parametrize("text", CHAINS)
def test_codecs_call_the_kernels_they_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    codec = compose(Plan.parse(text).wire, 2)
    assert codec is not None
    assert called(codec, monkeypatch) | {"largest"} == kernels_of(codec)


def test_so_does_what_orders_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = LargestCodec(10000)
    assert called(codec, monkeypatch) == kernels_of(codec)


def test_every_kernel_is_some_codecs() -> None:
    found = {name for text in CHAINS for name in kernels_of(compose(Plan.parse(text).wire, 2))}
    assert found >= set(kernels.names())
