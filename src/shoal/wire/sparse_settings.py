"""Settings of the built-in codecs that send some elements only: as `builtin.py`, which lists them."""

from dataclasses import dataclass

from shoal.wire.settings import CodecSettings, CodecWrapping, share_clip


@dataclass(frozen=True)
class NonzeroSettings(CodecSettings):
    """Elements that are not zero travel, with their places, layer by layer; a dense layer travels as it is.

    Costs: as few bytes as there are values that are not zero, at most a hundredth more than without it; nothing is
    lost.
    Cites: Wang et al. 2017, "Nexus: Bringing Efficient and Scalable Training to Deep Learning Frameworks".
    Avoid: where gradients hold no zeros.
    """

    name = "nonzero"
    codec_class = "shoal.wire.codecs.nonzero:NonzeroCodec"


@dataclass(frozen=True)
class TopKSettings(CodecSettings):
    """The largest elements of a bucket travel, about `ratio` of them; the others are added to the next step.

    Costs: about ratio * (1 + log2(1/ratio)/32) of the bytes; one more copy of the gradients for the residual.
    Cites: Aji & Heafield 2017, "Sparse Communication for Distributed Gradient Descent".
    Avoid: without feedback, and with many workers: every worker receives what all others send.
    """

    name = "topk"
    codec_class = "shoal.wire.codecs.topk:TopKCodec"

    ratio: float

    def __post_init__(self) -> None:
        self.check_number("ratio", 1e-6, 1.0)


@dataclass(frozen=True)
class RandomKSettings(CodecSettings):
    """Elements at random places travel, the same places on all workers; the others are added to the next step.

    Costs: ratio of the bytes, without places.
    Cites: Stich et al. 2018, "Sparsified SGD with Memory".
    Avoid: when topk is affordable, which learns more from the same bytes.
    """

    name = "randomk"
    codec_class = "shoal.wire.codecs.randomk:RandomKCodec"

    ratio: float

    def __post_init__(self) -> None:
        self.check_number("ratio", 1e-6, 1.0)


@dataclass(frozen=True)
class ThresholdSettings(CodecSettings):
    """An element whose residual reaches t travels as +t or -t with its place; the rest of it waits.

    Costs: as few bytes as gradients are small; one more copy of the gradients for the residual.
    Cites: Strom 2015, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing".
    Avoid: when you do not know the size of a worker's gradients (divided by the number of workers).
    """

    name = "threshold"
    codec_class = "shoal.wire.codecs.threshold:ThresholdCodec"

    t: float

    def __post_init__(self) -> None:
        self.check_number("t", 1e-30, 1e30)


@dataclass(frozen=True)
class SignificantSettings(CodecSettings):
    """A change travels once it is larger than `threshold` times the value it changes, or its layer's mean size where
    that is larger; until then it adds up. For pushes to servers: server, async, significant(0.05).

    Costs: as few bytes as changes are small; one more copy of the parameters for what waits.
    Cites: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server"; Hsieh et al. 2017, "Gaia:
    Geo-Distributed Machine Learning Approaching LAN Speeds".
    Avoid: with learning rates at which every step is a large part of the values.
    """

    name = "significant"
    codec_class = "shoal.wire.codecs.significant:SignificantCodec"
    compares = True

    threshold: float = 0.05

    def __post_init__(self) -> None:
        self.check_number("threshold", 1e-9, 1e9)


@dataclass(frozen=True)
class DgcSettings(CodecSettings):
    """The largest elements of each layer travel; the others accumulate with momentum, clipped, and masked when sent.

    Costs: about 1/600 of the bytes at ratio 0.001; two more copies of the gradients.
    Cites: Lin et al. 2018, "Deep Gradient Compression".
    Avoid: with an optimizer that has momentum of its own; write momentum=0 then.
    """

    name = "dgc"
    codec_class = "shoal.wire.codecs.layerk:LayerKCodec"

    ratio: float = 0.001
    momentum: float = 0.9
    """The optimizer's momentum, which moves here: give the optimizer none. 0 leaves the correction out."""
    clip: float = 0.0
    """Largest norm of a layer's gradient on a worker; 0 does not clip."""
    warmup: int = 0
    """Steps in which the ratio falls from 0.25."""

    def __post_init__(self) -> None:
        self.check_number("ratio", 1e-6, 1.0)
        self.check_number("momentum", 0.0, 0.9999)
        self.check_number("clip", 0.0, 1e30)
        self.check_whole("warmup", 0, 1 << 30)

    def codec_arguments(self) -> dict[str, object]:
        return {"ratio": self.ratio}

    def make_wrapping(self, workers: int) -> CodecWrapping:
        # Only momentum correction clips, so a clip asks for it even without momentum.
        momentum = self.momentum or (0.0 if self.clip else None)
        return CodecWrapping(momentum=momentum, clip=share_clip(self.clip, workers), warmup=self.warmup)


@dataclass(frozen=True)
class EsgdSettings(CodecSettings):
    """The largest elements travel; the others wait in a residual that fades, so that what is out of date is forgotten.

    Costs: as topk. The paper also weighs coordinates by whether the loss fell; a codec does not see the loss.
    Cites: Tao & Li 2018, "eSGD: Communication Efficient Distributed Deep Learning on the Edge".
    Avoid: with small ratios: what waits long is mostly forgotten.
    """

    name = "esgd"
    codec_class = "shoal.wire.codecs.topk:TopKCodec"

    ratio: float = 0.125
    momentum: float = 0.9
    """The fraction of a residual that is kept from one step to the next."""

    def __post_init__(self) -> None:
        self.check_number("ratio", 1e-6, 1.0)
        self.check_number("momentum", 0.0, 1.0)

    def codec_arguments(self) -> dict[str, object]:
        return {"ratio": self.ratio}

    def make_wrapping(self, workers: int) -> CodecWrapping:
        # eSGD's momentum is how much of a residual stays, which error feedback calls its decay.
        return CodecWrapping(decay=self.momentum)
