"""The terms of the wire axis that change how the codec beside them works, and `wire(auto)`, which chooses one."""

from dataclasses import replace
from typing import ClassVar, Literal

from shoal.core.errors import UsageError
from shoal.plan.term import CodecTerm, NamedTerm, PlanTerm
from shoal.wire.settings import CodecWrapping, check_number, check_whole, share_clip


class WrapperTerm(CodecTerm, frozen=True):
    """Base of the terms that wrap a codec."""

    repeatable: ClassVar[bool] = False
    """Whether a plan may hold several of them."""

    def add_to(self, wrapping: CodecWrapping, codec: NamedTerm, workers: int) -> CodecWrapping:
        """Return `wrapping` with this term's wrapper for the term `codec`, on one of `workers` workers."""
        return wrapping


class FeedbackTerm(WrapperTerm, frozen=True, tag="feedback"):
    """Adds what the codec did not send to the next gradient (error feedback); by default on for biased codecs.

    Costs: one more copy of the gradients.
    Cites: Karimireddy et al. 2019, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes".
    Avoid: off for onebit, twobit, topk, threshold and lowrank; on for the noise of ternary and qsgd.
    """

    name: ClassVar[str] = "feedback"

    errors: Literal["on", "off"]

    def add_to(self, wrapping: CodecWrapping, codec: NamedTerm, workers: int) -> CodecWrapping:
        if self.errors == "off" and wrapping.momentum is not None:
            raise UsageError(f"'{self}' with '{codec}': momentum correction keeps the residual; write momentum=0")
        return replace(wrapping, feedback=self.errors == "on")


class MomentumTerm(WrapperTerm, frozen=True, tag="momentum"):
    """Accumulates velocities instead of gradients, and resets a velocity once it is sent (masking).

    Costs: one more copy of the gradients.
    Cites: Lin et al. 2018, "Deep Gradient Compression".
    Avoid: with an optimizer that has its own momentum; around a codec that is not a sparsifier.
    """

    name: ClassVar[str] = "momentum"

    factor: float = 0.9
    clip: float = 0.0
    """Largest norm of a layer's gradient on a worker; 0 does not clip."""

    def __post_init__(self) -> None:
        check_number(self, "factor", self.factor, 0.0, 0.9999)
        check_number(self, "clip", self.clip, 0.0, 1e30)

    def add_to(self, wrapping: CodecWrapping, codec: NamedTerm, workers: int) -> CodecWrapping:
        # Each worker clips at its share of the limit, which `share_clip` explains.
        return replace(wrapping, momentum=self.factor, clip=share_clip(self.clip, workers))


class WarmUpTerm(WrapperTerm, frozen=True, tag="warmup"):
    """Makes a sparsifier begin with a quarter of the elements and tighten to its ratio.

    Costs: more bytes in the first steps.
    Cites: Lin et al. 2018, "Deep Gradient Compression".
    Avoid: in runs that are not much longer than the warm-up.
    """

    name: ClassVar[str] = "warmup"

    steps: int

    def __post_init__(self) -> None:
        check_whole(self, "steps", self.steps, 1, 1 << 30)

    def add_to(self, wrapping: CodecWrapping, codec: NamedTerm, workers: int) -> CodecWrapping:
        return replace(wrapping, warmup=self.steps)


class BySizeTerm(WrapperTerm, frozen=True, tag="by_size"):
    """Sends tensors with fewer elements unchanged; without this term, tensors of one dimension are.

    Costs: four bytes for each element of a small tensor.
    Avoid: large numbers, because tensors that are sent unchanged take most of the time.
    """

    name: ClassVar[str] = "by_size"

    least: int
    """The fewest elements of a tensor that is coded; 0 codes all."""

    def __post_init__(self) -> None:
        check_whole(self, "least", self.least, 0, 1 << 40)

    def add_to(self, wrapping: CodecWrapping, codec: NamedTerm, workers: int) -> CodecWrapping:
        return replace(wrapping, least=self.least)


class ByNameTerm(WrapperTerm, frozen=True, tag="by_name"):
    """Sends tensors whose name contains `word` unchanged; may be written several times.

    Costs: four bytes for each of their elements.
    Avoid: for large layers.
    """

    name: ClassVar[str] = "by_name"
    repeatable: ClassVar[bool] = True

    word: str

    def __post_init__(self) -> None:
        if not self.word.replace("_", "").replace("-", "").isalnum():
            raise UsageError(f"by_name({self.word!r}): word must be letters, digits, '_' or '-'; write by_name(norm)")

    def add_to(self, wrapping: CodecWrapping, codec: NamedTerm, workers: int) -> CodecWrapping:
        return replace(wrapping, words=(*wrapping.words, self.word))


class MeetTerm(WrapperTerm, frozen=True, tag="meet"):
    """Chooses how payloads are combined: all workers get all of them, or owners sum a share each and code it again.

    Costs: with p workers, gather sends p-1 payloads a worker; twostage about 2(p-1)/p, a latency and a second rounding.
    Cites: Tang et al. 2019, "DoubleSqueeze".
    Avoid: twostage where a latency costs more than the bytes saved; auto decides by bytes whenever members change.
    """

    name: ClassVar[str] = "meet"

    how: Literal["auto", "gather", "twostage"]

    @property
    def sends_twice(self) -> bool:  # type: ignore[override]
        return self.how == "twostage"


class GuardTerm(WrapperTerm, frozen=True, tag="guard"):
    """Compares the applied gradient with the true mean every so many steps, and sends more if it is below `budget`.

    The cosine is between sums over these steps. A sparsifier then sends twice as much; for other codecs it only warns.
    Costs: one exchange without a codec every so many steps; four more copies of the gradients.
    Cites: Agarwal et al. 2021, "Adaptive Gradient Communication via Critical Learning Regime Identification", who
    adapt the ratio while training, by the gradient's norm.
    Avoid: small numbers of steps on slow links; where members change more often than that (a change restarts it).
    """

    name: ClassVar[str] = "guard"
    # In some steps the exact gradient travels beside the payload.
    sends_twice: ClassVar[bool] = True

    budget: float = 0.9
    """The least cosine."""
    every: int = 50

    def __post_init__(self) -> None:
        check_number(self, "budget", self.budget, 0.0, 1.0)
        check_whole(self, "every", self.every, 1, 1 << 30)


class WireTerm(CodecTerm, frozen=True, tag="wire"):
    """Measures the first steps without a codec, then chooses a codec if one is clearly faster.

    Candidates lose nothing worth mentioning with any optimizer (fp16, int8); onebit and topk with feedback too where
    the optimizer is SGD, for which error feedback is known to hold. Inside one host it chooses none at once.
    Costs: some milliseconds of trials in join; the first nine steps without a codec.
    Cites: the model of a step is that of Shi et al. 2018, "Performance Modeling and Evaluation of Distributed Deep
    Learning Frameworks on GPUs".
    Avoid: in runs of a few steps; where members change often, because that restarts the trial.
    """

    name: ClassVar[str] = "wire"
    sends_twice: ClassVar[bool] = True

    how: Literal["auto"]


WRAPPERS: dict[str, type[PlanTerm]] = {
    "feedback": FeedbackTerm,
    "momentum": MomentumTerm,
    "warmup": WarmUpTerm,
    "by_size": BySizeTerm,
    "by_name": ByNameTerm,
    "meet": MeetTerm,
    "guard": GuardTerm,
}
