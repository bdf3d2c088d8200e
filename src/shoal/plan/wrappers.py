"""The terms of the wire axis that change how the codec beside them works; each stands at most once in a plan."""

from typing import ClassVar, Literal

from shoal.core.errors import UsageError
from shoal.plan.codecs import number, whole
from shoal.plan.term import CodecTerm, PlanTerm


class WrapperTerm(CodecTerm, frozen=True):
    """Base of the terms that go round a codec."""


class FeedbackTerm(WrapperTerm, frozen=True, tag="feedback"):
    """Says whether what the codec loses is added to what it sends next: on for biased codecs unless written.

    Costs: one more copy of the gradients.
    Cites: Karimireddy et al. 2019, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes".
    Avoid: off for onebit, twobit, topk, threshold and lowrank; on for the noise of ternary and qsgd.
    """

    name: ClassVar[str] = "feedback"

    errors: Literal["on", "off"]


class MomentumTerm(WrapperTerm, frozen=True, tag="momentum"):
    """Accumulates velocities instead of gradients, and lets go of a velocity when it is sent (masking).

    Costs: one more copy of the gradients.
    Cites: Lin et al. 2018, "Deep Gradient Compression".
    Avoid: with an optimizer that has momentum of its own; round a codec that is no sparsifier.
    """

    name: ClassVar[str] = "momentum"

    factor: float = 0.9
    clip: float = 0.0
    """Largest norm of a layer's gradient on a worker; 0 does not clip."""

    def __post_init__(self) -> None:
        number(self, "factor", self.factor, 0.0, 0.9999)
        number(self, "clip", self.clip, 0.0, 1e30)


class WarmUpTerm(WrapperTerm, frozen=True, tag="warmup"):
    """A sparsifier begins with a quarter of the elements and tightens to its ratio.

    Costs: more bytes in the first steps.
    Cites: Lin et al. 2018, "Deep Gradient Compression".
    Avoid: in runs not much longer than it.
    """

    name: ClassVar[str] = "warmup"

    steps: int

    def __post_init__(self) -> None:
        whole(self, "steps", self.steps, 1, 1 << 30)


class BySizeTerm(WrapperTerm, frozen=True, tag="by_size"):
    """Tensors with fewer elements travel as they are; without this term, those of one dimension do.

    Costs: four bytes for each element of a small tensor.
    Avoid: large numbers: what travels as it is, is what you wait for.
    """

    name: ClassVar[str] = "by_size"

    least: int
    """Elements from which on a tensor is coded; 0 codes all."""

    def __post_init__(self) -> None:
        whole(self, "least", self.least, 0, 1 << 40)


class ByNameTerm(WrapperTerm, frozen=True, tag="by_name"):
    """Tensors whose name contains `word` travel as they are; may be written several times.

    Costs: four bytes for each of their elements.
    Avoid: for large layers.
    """

    name: ClassVar[str] = "by_name"

    word: str

    def __post_init__(self) -> None:
        if not self.word.replace("_", "").replace("-", "").isalnum():
            raise UsageError(f"by_name({self.word!r}): word must be letters, digits, '_' or '-'; write by_name(norm)")


class MeetTerm(WrapperTerm, frozen=True, tag="meet"):
    """Says how payloads of all workers come together: all to everybody, or by owners who code the sum once more.

    Costs: with p workers, gather sends p-1 payloads a worker; twostage about 2(p-1)/p, a latency and a second rounding.
    Cites: Tang et al. 2019, "DoubleSqueeze".
    Avoid: twostage where a latency costs more than its bytes; auto decides by bytes, anew when members change.
    """

    name: ClassVar[str] = "meet"

    how: Literal["auto", "gather", "twostage"]


class GuardTerm(WrapperTerm, frozen=True, tag="guard"):
    """Every so many steps, holds what was applied against the true mean gradient; below `budget` sends more.

    The cosine is between sums over these steps. A sparsifier then sends twice as much; of other codecs it is only said.
    Costs: one exchange without a codec every so many steps; four more copies of the gradients.
    Cites: Agarwal et al. 2021, "Adaptive Gradient Communication via Critical Learning Regime Identification", who
    adapt the ratio while training, by the gradient's norm.
    Avoid: small numbers of steps on slow links; where members change more often than that: a window is one view's.
    """

    name: ClassVar[str] = "guard"

    budget: float = 0.9
    """The least cosine."""
    every: int = 50

    def __post_init__(self) -> None:
        number(self, "budget", self.budget, 0.0, 1.0)
        whole(self, "every", self.every, 1, 1 << 30)


WRAPPERS: dict[str, type[PlanTerm]] = {
    "feedback": FeedbackTerm,
    "momentum": MomentumTerm,
    "warmup": WarmUpTerm,
    "by_size": BySizeTerm,
    "by_name": ByNameTerm,
    "meet": MeetTerm,
    "guard": GuardTerm,
}
