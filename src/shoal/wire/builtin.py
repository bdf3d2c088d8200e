"""Settings of the built-in codecs: what each does, costs and cites, its arguments and their ranges; without torch.

`shoal plan explain` shows a class's docstring: what the codec does, then `Costs:`, `Cites:`, `Avoid:`. A codec of
`codecs/` inherits its settings from here, so that an argument is declared once. Codecs that send some elements only
have theirs in `sparse_settings.py`.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.wire.settings import CodecSettings
from shoal.wire.sparse_settings import (
    DgcSettings,
    EsgdSettings,
    NonzeroSettings,
    RandomKSettings,
    SignificantSettings,
    ThresholdSettings,
    TopKSettings,
)


@dataclass(frozen=True)
class Fp16Settings(CodecSettings):
    """Gradients travel as 16-bit floats, scaled so that they neither overflow nor vanish, and are summed so.

    Costs: half the bytes; 11 bits of precision.
    Cites: Micikevicius et al. 2018, "Mixed Precision Training".
    Avoid: inside one host, where no byte crosses a socket.
    """

    name = "fp16"
    codec_class = "shoal.wire.codecs.cast:Fp16Codec"


@dataclass(frozen=True)
class Bf16Settings(CodecSettings):
    """Gradients travel as the upper half of a 32-bit float, and are summed so.

    Costs: half the bytes; 8 bits of precision, float32's range.
    Cites: Kalamkar et al. 2019, "A Study of BFLOAT16 for Deep Learning Training".
    Avoid: when 8 bits of precision are too few; fp16 has 11.
    """

    name = "bf16"
    codec_class = "shoal.wire.codecs.cast:Bf16Codec"


@dataclass(frozen=True)
class Int8Settings(CodecSettings):
    """Gradients travel as 8-bit integers with a scale per block, rounded at random so that the mean is right.

    Costs: a quarter of the bytes, and 4 bytes a block.
    Cites: Dettmers 2016, "8-Bit Approximations for Parallelism in Deep Learning".
    Avoid: when a few values of a block are far larger than the others.
    """

    name = "int8"
    codec_class = "shoal.wire.codecs.int8:Int8Codec"

    block: int = 1024
    """Elements that share a scale."""

    def __post_init__(self) -> None:
        self.check_whole("block", 8, 1 << 24)


@dataclass(frozen=True)
class FixedSettings(CodecSettings):
    """Gradients travel in fixed point, rounded at random or to the nearest.

    Costs: bits/32 of the bytes.
    Cites: Gupta et al. 2015, "Deep Learning with Limited Numerical Precision".
    Avoid: with rounding=nearest when gradients are smaller than 2^-frac: all of them become zero.
    """

    name = "fixed"
    codec_class = "shoal.wire.codecs.fixed:FixedPointCodec"

    bits: int = 16
    frac: int = 8
    """Bits after the point."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"

    def __post_init__(self) -> None:
        self.check_whole("bits", 2, 24)
        self.check_whole("frac", 0, 40)


@dataclass(frozen=True)
class OneBitSettings(CodecSettings):
    """Each element travels as its sign; each side of a block as its mean. What is lost is added to the next step.

    Costs: 1/32 of the bytes and 8 bytes a block; one more copy of the gradients for the residual.
    Cites: Seide et al. 2014, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
    Training of Speech DNNs".
    Avoid: without feedback.
    """

    name = "onebit"
    codec_class = "shoal.wire.codecs.onebit:OneBitCodec"

    block: int = 2048
    """Elements that share the two means; a block never spans two layers."""

    def __post_init__(self) -> None:
        self.check_whole("block", 8, 1 << 24)


@dataclass(frozen=True)
class TwoBitSettings(CodecSettings):
    """Each element travels as +threshold, -threshold or nothing; the rest is added to the next step.

    Costs: 1/16 of the bytes; one more copy of the gradients for the residual.
    Cites: Chen et al. 2015, "MXNet"; the 2-bit compression of its KVStore.
    Avoid: when you do not know the size of a worker's gradients (divided by the number of workers).
    """

    name = "twobit"
    codec_class = "shoal.wire.codecs.twobit:TwoBitCodec"

    threshold: float = 0.01

    def __post_init__(self) -> None:
        self.check_number("threshold", 1e-30, 1e30)


@dataclass(frozen=True)
class TernarySettings(CodecSettings):
    """Each element of a layer becomes +s, -s or nothing, at random so that the mean is right.

    Costs: 1/16 of the bytes, or 1/25 with packing=golomb, which takes longer to write; noise, which more samples a
    step average away.
    Cites: Wen et al. 2017, "TernGrad".
    Avoid: with small batches.
    """

    name = "ternary"
    codec_class = "shoal.wire.codecs.ternary:TernaryCodec"

    clip: float = 2.5
    """Standard deviations of a layer beyond which values are cut off; 0 does not cut."""
    packing: Literal["plain", "golomb"] = "plain"
    """Two bits an element, or Golomb's code of the gaps between those that travel, where it is shorter."""

    def __post_init__(self) -> None:
        self.check_number("clip", 0.0, 1e6)


@dataclass(frozen=True)
class QsgdSettings(CodecSettings):
    """Each element becomes one of 2^bits - 1 levels of its bucket's norm, at random, in a code of varying length.

    Costs: 2 to 3 bits an element at bits=4; slow to encode, because a code begins where the one before ends.
    Cites: Alistarh et al. 2017, "QSGD".
    Avoid: on fast networks.
    """

    name = "qsgd"
    codec_class = "shoal.wire.codecs.qsgd:QsgdCodec"

    bits: int = 4
    bucket: int = 512
    """Elements that share a norm."""

    def __post_init__(self) -> None:
        self.check_whole("bits", 1, 8)
        self.check_whole("bucket", 8, 1 << 24)


@dataclass(frozen=True)
class LowRankSettings(CodecSettings):
    """Every matrix travels as two thin factors of rank `rank`, which are summed; the error is added to the next step.

    Costs: rank * (rows + columns) instead of rows * columns; two rounds; one more copy of the gradients.
    Cites: Vogels et al. 2019, "PowerSGD".
    Avoid: when most parameters are in small matrices.
    """

    name = "lowrank"
    codec_class = "shoal.wire.codecs.lowrank:LowRankCodec"
    sends_twice = True

    rank: int = 2

    def __post_init__(self) -> None:
        self.check_whole("rank", 1, 256)


# A literal table: nothing registers itself by being imported.
BUILT_IN: dict[str, type[CodecSettings]] = {
    settings.name: settings
    for settings in (
        Fp16Settings,
        Bf16Settings,
        Int8Settings,
        FixedSettings,
        OneBitSettings,
        TwoBitSettings,
        TernarySettings,
        QsgdSettings,
        NonzeroSettings,
        TopKSettings,
        RandomKSettings,
        ThresholdSettings,
        SignificantSettings,
        DgcSettings,
        EsgdSettings,
        LowRankSettings,
    )
}
"""Name in a plan -> settings."""
