"""The pace of local steps: replicas agree on parameters after every so many steps of their own."""

from typing import ClassVar, Literal

from shoal.core.errors import UsageError
from shoal.core.term import write_value
from shoal.plan.term import Axis, PlanTerm
from shoal.sync.local.round_length import FIRST
from shoal.wire.settings import check_number, check_whole

MOST_STEPS = 1_000_000
MOST_FRAGMENTS = 1024


NUMBERS = {
    "average": (),
    "diloco": ("rate", "momentum"),
    "bmuf": ("rate", "momentum"),
    "easgd": ("alpha",),
    "sma": ("alpha", "momentum"),
}
"""Outer optimizer -> the arguments that are for it."""
LIMITS = {"rate": (1e-6, 1e3), "momentum": (0.0, 0.9999), "alpha": (1e-6, 1.0)}


class LocalTerm(PlanTerm, frozen=True, tag="local"):
    """Every worker trains by itself for some steps of its optimizer; then the mean change of all, by samples, goes
    through an outer step, and all go on from its result: average takes the mean as it is; bmuf gives it a momentum of
    its own (1 - 1/p for p workers unless written); diloco makes a Nesterov step with rate 0.7 and momentum 0.9. With
    average, plain SGD and one step a round it equals every(1). Under easgd and sma replicas stay different: a round
    corrects each by a part of its distance to a centre (alpha, 0.9/p and 1/p unless written), and moves the centre by
    the sum of the corrections, under sma with a momentum of 0.9. At the end of a pass all begin anew from the centre.
    With overlap=true a round travels while the next one trains; when that ends, the outer step is made, and each worker
    goes on from its result plus what its own steps have changed meanwhile. fragments=n cuts the parameters into n parts
    that have their rounds in turn, so that an exchange sends an n-th of the bytes n times as often. local(auto) begins
    with 8 steps and then makes rounds as short as keeps exchanges under a tenth of the time; while replicas differ by
    more than they have in common, it halves them, as long as exchanges stay under half of the time.

    Costs: one exchange of the parameters' size per round, so a k-th of the bytes of every(1) for rounds of k steps;
    one more copy of the parameters, with bmuf, diloco and sma two; with overlap or fragments another one. A worker that
    is lost loses its steps since the round.
    Cites: Stich 2019, "Local SGD Converges Fast and Communicates Little"; Chen & Huo 2016, "Scalable training of deep
    learning machines by incremental block training with intra-block parallel optimization and blockwise model-update
    filtering"; Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models"; Zhang et al.
    2015, "Deep learning with Elastic Averaging SGD"; Koliousis et al. 2019, "CROSSBOW: Scaling Deep Learning with Small
    Batch Sizes on Multi-GPU Servers"; Wang et al. 2020, "Overlap Local-SGD"; Douillard et al. 2025, "Streaming DiLoCo
    with overlapping communication"; Wang & Joshi 2019, "Adaptive Communication Strategies to Achieve the Best
    Error-Runtime Trade-off in Local-Update SGD".
    Avoid: on a network that is fast enough for every(1), because replicas drift apart between rounds; long rounds with
    average and many workers; bmuf and diloco in runs of a few rounds; sma with large batches; overlap inside one host,
    where the sum is made when it lands and a round takes no time.
    """

    axis: ClassVar[Axis] = "pace"
    name: ClassVar[str] = "local"

    steps: int | Literal["auto"] = 16
    """Optimizer steps from one round to the next; auto: as many as keep exchanges under a tenth of the time, fewer
    while replicas drift."""
    outer: Literal["average", "bmuf", "diloco", "easgd", "sma"] = "average"
    rate: float | None = None
    """Of bmuf and diloco: what the mean change is multiplied by."""
    momentum: float | None = None
    """Of bmuf, diloco and sma."""
    alpha: float | None = None
    """Of easgd and sma: what part of its distance to the centre a replica is corrected by."""
    state: Literal["keep", "reset", "average"] = "keep"
    """Of the workers' own optimizers at the end of a round."""
    overlap: bool = False
    """Whether a round travels while the next one trains, and is applied when that ends."""
    fragments: int = 1
    """Parts of the parameters, each with a round of its own; one leaves every steps/fragments steps."""
    samples: Literal["static", "leased"] = "static"
    """Who trains what in a round: the same number of batches for everybody, or each worker as many as it leases."""
    end: Literal["all", "fastest"] = "all"
    """Of a round of leased samples: when all its batches are trained, or when the fastest worker is through with its
    own; the others stop at the end of their step, and what they had not begun is leased first in the next round."""

    def __post_init__(self) -> None:
        if self.steps != "auto":
            check_whole(self, "steps", self.steps, 1, MOST_STEPS)
        for field, (least, most) in LIMITS.items():
            if (value := getattr(self, field)) is None:
                continue
            if field not in NUMBERS[self.outer]:
                other = next(outer for outer, fields in NUMBERS.items() if field in fields)
                way_out = f"write local({self.steps}, {other}, {field}={value})"
                raise UsageError(f"{self}: {self.outer} has no {field}; {way_out}")
            check_number(self, field, value, least, most)
        check_whole(self, "fragments", self.fragments, 1, MOST_FRAGMENTS)
        if self.streams and self.steps == "auto":
            raise UsageError(
                f"{self}: auto measures rounds that are waited for; "
                f"write local({FIRST * self.fragments}, {self.outer}) with overlap or fragments"
            )
        if self.steps != "auto" and self.steps % self.fragments:
            # The nearest number that can be cut, for the message.
            nearest = max(self.fragments, round(self.steps / self.fragments) * self.fragments)
            raise UsageError(
                f"{self}: {self.steps} steps cannot be cut into {self.fragments} equal parts; "
                f"write local({nearest}, {self.outer}, fragments={self.fragments})"
            )
        if self.samples == "leased" and (self.streams or self.steps == "auto"):
            raise UsageError(
                f"{self}: leased samples need rounds of a fixed number of batches that end before the next step; "
                f"write local({self.first_steps}, {self.outer}, samples=leased), without overlap and fragments"
            )
        if self.end == "fastest" and self.samples != "leased":
            raise UsageError(
                f"{self}: what slow workers have not begun when the fastest ends a round must be given to others; "
                f"write local({self.first_steps}, {self.outer}, samples=leased, end=fastest)"
            )
        if self.streams and (self.outer in ("easgd", "sma") or self.state != "keep"):
            what = f"state={self.state}" if self.state != "keep" else self.outer
            raise UsageError(
                f"{self}: {what} needs rounds of all parameters that end before the next step; "
                f"remove overlap and fragments, or write local({self.steps}, diloco, overlap=true)"
            )

    @property
    def first_steps(self) -> int:
        """Of the first round."""
        return FIRST if self.steps == "auto" else self.steps

    @property
    def streams(self) -> bool:
        """Whether rounds land while later steps are made, or cover a part of the parameters."""
        return self.overlap or self.fragments > 1

    def __str__(self) -> str:
        named = {
            "rate": self.rate,
            "momentum": self.momentum,
            "alpha": self.alpha,
            "state": None if self.state == "keep" else self.state,
            "samples": None if self.samples == "static" else self.samples,
            "end": None if self.end == "all" else self.end,
            "overlap": self.overlap or None,
            "fragments": None if self.fragments == 1 else self.fragments,
        }
        more = [f"{name}={write_value(value)}" for name, value in named.items() if value is not None]
        return f"local({', '.join([str(self.steps), self.outer, *more])})"

    @classmethod
    def usage(cls) -> str:
        return "local(16, diloco, rate=0.7, momentum=0.9)"
