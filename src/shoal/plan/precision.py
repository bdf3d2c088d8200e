"""The terms of the wire axis that say in how many bits the model itself is kept and computed.

They stand beside codecs, not in their chain: `dorefa(1, 2, 6), topk(0.01)`. `train/precision` does what they say,
and the script stays as it is.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from shoal.core.errors import UsageError
from shoal.plan.term import CodecTerm, PlanTerm
from shoal.wire.settings import check_number, check_whole

if TYPE_CHECKING:
    from shoal.wire.codec import GradientCodec

FULL = 32


class PrecisionTerm(CodecTerm, frozen=True):
    """Base of the terms that say how a model is kept."""

    def make_codec(self) -> "GradientCodec | None":
        """Return what gradients travel as where the plan holds no codec; None leaves them as they are."""
        return None


class WeightsTerm(PrecisionTerm, frozen=True, tag="weights"):
    """Weights are kept in fixed point: after every update each is rounded, at random or to the nearest.

    Costs: one pass over the weights a step.
    Cites: Gupta et al. 2015, "Deep Learning with Limited Numerical Precision".
    Avoid: rounding=nearest when an update is smaller than half of 2^-frac: it is lost, every time.
    """

    name: ClassVar[str] = "weights"

    bits: int = 16
    frac: int = 8
    """Bits after the point."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"

    def __post_init__(self) -> None:
        check_whole(self, "bits", self.bits, 2, 24)
        check_whole(self, "frac", self.frac, 0, 40)


class DorefaTerm(PrecisionTerm, frozen=True, tag="dorefa"):
    """Layers compute with weights of w bits, inputs of a bits in [0, 1], and gradients of g bits rounded at random.

    The optimizer updates weights of full precision. The first and the last layer stay as they are. Without a codec
    of its own, the plan's gradients travel at g bits too. 32 bits leave a part as it is.
    Costs: some passes over weights and activations; g/32 of the bytes.
    Cites: Zhou et al. 2016, "DoReFa-Net".
    Avoid: layers whose inputs are below 0 or far above 1 (transformers), where a must be 32.
    """

    name: ClassVar[str] = "dorefa"

    w: int = 1
    a: int = 2
    g: int = 6

    def __post_init__(self) -> None:
        for field in ("w", "a", "g"):
            bits = getattr(self, field)
            # type(), because isinstance would take True for 1.
            if type(bits) is not int or not (1 <= bits <= 8 or bits == FULL):
                raise UsageError(f"dorefa({field}={bits}): {field} must be a whole number from 1 to 8, or {FULL}")

    def make_codec(self) -> "GradientCodec | None":
        from shoal.wire.codecs.uniform import UniformCodec  # brings torch along

        return UniformCodec(self.g) if self.g < FULL else None


class HalpTerm(PrecisionTerm, frozen=True, tag="halp"):
    """Weights move in `bits` bits round an anchor; the grid is finer the smaller the anchor's gradient (bit centring).

    `anchor` steps measure the gradient at the anchor and change nothing; `inner` steps correct each gradient by what
    the anchor's would be on the same samples (SVRG). Then the anchor moves to where the weights are.
    Costs: a second forward and backward pass in inner steps; two more copies of the weights.
    Cites: De Sa et al. 2018, "High-Accuracy Low-Precision Training".
    Avoid: deep networks, where variance reduction rarely pays, and optimizers other than SGD.
    """

    name: ClassVar[str] = "halp"

    bits: int = 8
    mu: float = 1.0
    """How strongly convex the loss is: weights stay within (gradient's norm)/mu of the anchor."""
    anchor: int = 100
    """Steps the anchor's gradient is averaged over: those of an epoch make it exact."""
    inner: int = 200

    def __post_init__(self) -> None:
        check_whole(self, "bits", self.bits, 2, 24)
        check_number(self, "mu", self.mu, 1e-12, 1e12)
        check_whole(self, "anchor", self.anchor, 1, 1 << 30)
        check_whole(self, "inner", self.inner, 1, 1 << 30)


PRECISION: dict[str, type[PlanTerm]] = {
    "weights": WeightsTerm,
    "dorefa": DorefaTerm,
    "halp": HalpTerm,
}
