"""The terms of the wire axis that encode: what gradients travel as. `compose.py` makes one codec of a plan's terms."""

import math
from typing import ClassVar, Literal

from shoal.core.errors import UsageError
from shoal.plan.term import CodecTerm, PlanTerm


class Fp16Term(CodecTerm, frozen=True, tag="fp16"):
    """Gradients travel as 16-bit floats, scaled so that they neither overflow nor vanish, and are summed so.

    Costs: half the bytes; 11 bits of precision.
    Cites: Micikevicius et al. 2018, "Mixed Precision Training".
    Avoid: inside one host, where no byte crosses a socket.
    """

    name: ClassVar[str] = "fp16"


class Bf16Term(CodecTerm, frozen=True, tag="bf16"):
    """Gradients travel as the upper half of a 32-bit float, and are summed so.

    Costs: half the bytes; 8 bits of precision, float32's range.
    Cites: Kalamkar et al. 2019, "A Study of BFLOAT16 for Deep Learning Training".
    Avoid: when 8 bits of precision are too few; fp16 has 11.
    """

    name: ClassVar[str] = "bf16"


class Int8Term(CodecTerm, frozen=True, tag="int8"):
    """Gradients travel as 8-bit integers with a scale per block, rounded at random so that the mean is right.

    Costs: a quarter of the bytes, and 4 bytes a block.
    Cites: Dettmers 2016, "8-Bit Approximations for Parallelism in Deep Learning".
    Avoid: when a few values of a block are far larger than the others.
    """

    name: ClassVar[str] = "int8"

    block: int = 1024
    """Elements that share a scale."""

    def __post_init__(self) -> None:
        whole(self, "block", self.block, 8, 1 << 24)


class FixedTerm(CodecTerm, frozen=True, tag="fixed"):
    """Gradients travel in fixed point, rounded at random or to the nearest.

    Costs: bits/32 of the bytes.
    Cites: Gupta et al. 2015, "Deep Learning with Limited Numerical Precision".
    Avoid: with rounding=nearest when gradients are smaller than 2^-frac: all of them become zero.
    """

    name: ClassVar[str] = "fixed"

    bits: int = 16
    frac: int = 8
    """Bits after the point."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"

    def __post_init__(self) -> None:
        whole(self, "bits", self.bits, 2, 24)
        whole(self, "frac", self.frac, 0, 40)


class OneBitTerm(CodecTerm, frozen=True, tag="onebit"):
    """Each element travels as its sign; each side of a block as its mean. What is lost is added to the next step.

    Costs: 1/32 of the bytes and 8 bytes a block; one more copy of the gradients for the residual.
    Cites: Seide et al. 2014, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
    Training of Speech DNNs".
    Avoid: without feedback.
    """

    name: ClassVar[str] = "onebit"

    block: int = 2048
    """Elements that share the two means; a block never spans two layers."""

    def __post_init__(self) -> None:
        whole(self, "block", self.block, 8, 1 << 24)


class TwoBitTerm(CodecTerm, frozen=True, tag="twobit"):
    """Each element travels as +threshold, -threshold or nothing; the rest is added to the next step.

    Costs: 1/16 of the bytes; one more copy of the gradients for the residual.
    Cites: Chen et al. 2015, "MXNet"; the 2-bit compression of its KVStore.
    Avoid: when you do not know the size of a worker's gradients (divided by the number of workers).
    """

    name: ClassVar[str] = "twobit"

    threshold: float = 0.01

    def __post_init__(self) -> None:
        number(self, "threshold", self.threshold, 1e-30, 1e30)


class TernaryTerm(CodecTerm, frozen=True, tag="ternary"):
    """Each element of a layer becomes +s, -s or nothing, at random so that the mean is right.

    Costs: 1/16 of the bytes, or 1/25 with packing=golomb, which takes longer to write; noise, which more samples a
    step average away.
    Cites: Wen et al. 2017, "TernGrad".
    Avoid: with small batches.
    """

    name: ClassVar[str] = "ternary"

    clip: float = 2.5
    """Standard deviations of a layer beyond which values are cut off; 0 does not cut."""
    packing: Literal["plain", "golomb"] = "plain"
    """Two bits an element, or Golomb's code of the gaps between those that travel, where it is shorter."""

    def __post_init__(self) -> None:
        number(self, "clip", self.clip, 0.0, 1e6)


class QsgdTerm(CodecTerm, frozen=True, tag="qsgd"):
    """Each element becomes one of 2^bits - 1 levels of its bucket's norm, at random, in a code of varying length.

    Costs: 2 to 3 bits an element at bits=4; slow to encode, for a code begins where the one before ends.
    Cites: Alistarh et al. 2017, "QSGD".
    Avoid: on fast networks.
    """

    name: ClassVar[str] = "qsgd"

    bits: int = 4
    bucket: int = 512
    """Elements that share a norm."""

    def __post_init__(self) -> None:
        whole(self, "bits", self.bits, 1, 8)
        whole(self, "bucket", self.bucket, 8, 1 << 24)


class NonzeroTerm(CodecTerm, frozen=True, tag="nonzero"):
    """Elements that are not zero travel, with their places, layer by layer; a dense layer travels as it is.

    Costs: as few bytes as there are values that are not zero, at most a hundredth more than without it; nothing is
    lost.
    Cites: Wang et al. 2017, "Nexus: Bringing Efficient and Scalable Training to Deep Learning Frameworks".
    Avoid: where gradients hold no zeros.
    """

    name: ClassVar[str] = "nonzero"


class TopKTerm(CodecTerm, frozen=True, tag="topk"):
    """The largest elements of a bucket travel, about `ratio` of them; the others are added to the next step.

    Costs: about ratio * (1 + log2(1/ratio)/32) of the bytes; one more copy of the gradients for the residual.
    Cites: Aji & Heafield 2017, "Sparse Communication for Distributed Gradient Descent".
    Avoid: without feedback, and with many workers: everybody receives what everybody sends.
    """

    name: ClassVar[str] = "topk"

    ratio: float

    def __post_init__(self) -> None:
        number(self, "ratio", self.ratio, 1e-6, 1.0)


class RandomKTerm(CodecTerm, frozen=True, tag="randomk"):
    """Elements at random places travel, the same places on all workers; the others are added to the next step.

    Costs: ratio of the bytes, without places.
    Cites: Stich et al. 2018, "Sparsified SGD with Memory".
    Avoid: when topk is affordable, which learns more from the same bytes.
    """

    name: ClassVar[str] = "randomk"

    ratio: float

    def __post_init__(self) -> None:
        number(self, "ratio", self.ratio, 1e-6, 1.0)


class ThresholdTerm(CodecTerm, frozen=True, tag="threshold"):
    """An element whose residual reaches t travels as +t or -t with its place; the rest of it waits.

    Costs: as few bytes as gradients are small; one more copy of the gradients for the residual.
    Cites: Strom 2015, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing".
    Avoid: when you do not know the size of a worker's gradients (divided by the number of workers).
    """

    name: ClassVar[str] = "threshold"

    t: float

    def __post_init__(self) -> None:
        number(self, "t", self.t, 1e-30, 1e30)


class DgcTerm(CodecTerm, frozen=True, tag="dgc"):
    """The largest elements of each layer travel; the others accumulate with momentum, clipped, and masked when sent.

    Costs: about 1/600 of the bytes at ratio 0.001; two more copies of the gradients.
    Cites: Lin et al. 2018, "Deep Gradient Compression".
    Avoid: with an optimizer that has momentum of its own; write momentum=0 then.
    """

    name: ClassVar[str] = "dgc"

    ratio: float = 0.001
    momentum: float = 0.9
    """The optimizer's momentum, which moves here: give the optimizer none. 0 leaves the correction out."""
    clip: float = 0.0
    """Largest norm of a layer's gradient on a worker; 0 does not clip."""
    warmup: int = 0
    """Steps in which the ratio falls from 0.25."""

    def __post_init__(self) -> None:
        number(self, "ratio", self.ratio, 1e-6, 1.0)
        number(self, "momentum", self.momentum, 0.0, 0.9999)
        number(self, "clip", self.clip, 0.0, 1e30)
        whole(self, "warmup", self.warmup, 0, 1 << 30)


class EsgdTerm(CodecTerm, frozen=True, tag="esgd"):
    """The largest elements travel; the others wait in a residual that fades, so that what is out of date is forgotten.

    Costs: as topk. The paper also weighs coordinates by whether the loss fell; a codec does not see the loss.
    Cites: Tao & Li 2018, "eSGD: Communication Efficient Distributed Deep Learning on the Edge".
    Avoid: with small ratios: what waits long is mostly forgotten.
    """

    name: ClassVar[str] = "esgd"

    ratio: float = 0.125
    momentum: float = 0.9
    """What of a residual is left a step later."""

    def __post_init__(self) -> None:
        number(self, "ratio", self.ratio, 1e-6, 1.0)
        number(self, "momentum", self.momentum, 0.0, 1.0)


class LowRankTerm(CodecTerm, frozen=True, tag="lowrank"):
    """Every matrix travels as two thin factors of rank `rank`, which are summed; the error is added to the next step.

    Costs: rank * (rows + columns) instead of rows * columns; two rounds; one more copy of the gradients.
    Cites: Vogels et al. 2019, "PowerSGD".
    Avoid: when most parameters are in small matrices.
    """

    name: ClassVar[str] = "lowrank"

    rank: int = 2

    def __post_init__(self) -> None:
        whole(self, "rank", self.rank, 1, 256)


CODECS: dict[str, type[PlanTerm]] = {
    "fp16": Fp16Term,
    "bf16": Bf16Term,
    "int8": Int8Term,
    "fixed": FixedTerm,
    "onebit": OneBitTerm,
    "twobit": TwoBitTerm,
    "ternary": TernaryTerm,
    "qsgd": QsgdTerm,
    "nonzero": NonzeroTerm,
    "topk": TopKTerm,
    "randomk": RandomKTerm,
    "threshold": ThresholdTerm,
    "dgc": DgcTerm,
    "esgd": EsgdTerm,
    "lowrank": LowRankTerm,
}


def whole(term: PlanTerm, field: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise UsageError(f"{term.name}({field}={value}): {field} must be a whole number from {least} to {most}")


def number(term: PlanTerm, field: str, value: float, least: float, most: float) -> None:
    if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
        raise UsageError(f"{term.name}({field}={value}): {field} must be a number from {least:g} to {most:g}")
