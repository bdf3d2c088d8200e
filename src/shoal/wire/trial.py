"""Measure how long codecs take on this machine, on random numbers: the best of three, before or beside training.

A few milliseconds are enough: links and codecs differ by factors of ten.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from shoal.core.clock import now
from shoal.wire.codec import GradientCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout

SAMPLE = 1 << 17
"""Elements: large enough that calls do not count, small enough to be nothing beside a step."""
REPEATS = 3


class CodecTrial(NamedTuple):
    """Seconds and bytes an element."""

    encode: float
    decode: float
    sent: float


def try_codec(codec: GradientCodec) -> CodecTrial:
    """Time encoding, and decoding one payload; compile what is not compiled yet first."""
    layout = FlatLayout.of([("sample", (SAMPLE // 256, 256))])
    values, out = _numbers(), torch.zeros(codec.max_bytes(layout), dtype=torch.uint8)
    state, total, length = codec.init_state(layout), torch.zeros(SAMPLE), 0

    def encode() -> None:
        nonlocal length
        length = codec.encode_into(values, layout, state, EncodeContext(), out)

    encode()
    codec.decode_add(out[:length], layout, total)
    return CodecTrial(_best(encode), _best(lambda: codec.decode_add(out[:length], layout, total)), length / SAMPLE)


def try_casting(dtype: torch.dtype = torch.float16) -> CodecTrial:
    """Time a cast with a scale and back, as payloads that are summed do; compile nothing."""
    values, half, scratch = _numbers(), torch.empty(SAMPLE, dtype=dtype), torch.empty(SAMPLE)

    def encode() -> None:
        half.copy_(torch.mul(values, 1024.0, out=scratch).clamp_(-60000.0, 60000.0))

    encode()
    return CodecTrial(_best(encode), _best(lambda: torch.mul(half.float(), 1.0 / 1024, out=scratch)), 2.0)


def try_adding(dtype: torch.dtype = torch.float32) -> float:
    """Return the seconds an element to add one copy to another, as one host's memory is summed."""
    one, other, out = _numbers().to(dtype), _numbers().to(dtype), torch.empty(SAMPLE, dtype=dtype)
    if dtype is torch.float32:
        return _best(lambda: torch.add(one, other, out=out))
    return _best(lambda: out.copy_(torch.stack([one, other]).float().sum(0)))


def _numbers() -> torch.Tensor:
    """Draw from a generator of its own, so that the script's is left alone."""
    return torch.randn(SAMPLE, generator=torch.Generator().manual_seed(1))


def _best(act: Callable[[], object]) -> float:
    """Seconds an element."""
    found = []
    for _ in range(REPEATS):
        began = now()
        act()
        found.append(now() - began)
    # The best, because other processes can only make it longer.
    return min(found) / SAMPLE
