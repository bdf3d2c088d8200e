"""The pace of local steps: replicas agree on parameters after every so many steps of their own."""

from typing import ClassVar, Literal

from shoal.core.errors import UsageError
from shoal.core.term import write_value
from shoal.plan.term import Axis, PlanTerm
from shoal.wire.settings import check_number, check_whole

MOST_STEPS = 1_000_000


class LocalTerm(PlanTerm, frozen=True, tag="local"):
    """Every worker trains by itself for some steps of its optimizer; then the mean change of all, by samples, goes
    through an outer step, and all go on from its result: average takes the mean as it is; bmuf gives it a momentum of
    its own (1 - 1/p for p workers unless written); diloco makes a Nesterov step with rate 0.7 and momentum 0.9. With
    average, plain SGD and one step a round it equals every(1).

    Costs: one exchange of the parameters' size per round, so a k-th of the bytes of every(1) for rounds of k steps;
    one more copy of the parameters, with bmuf and diloco two. A worker that is lost loses its steps since the round.
    Cites: Stich 2019, "Local SGD Converges Fast and Communicates Little"; Chen & Huo 2016, "Scalable training of deep
    learning machines by incremental block training with intra-block parallel optimization and blockwise model-update
    filtering"; Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models".
    Avoid: on a network that is fast enough for every(1), because replicas drift apart between rounds; long rounds with
    average and many workers; bmuf and diloco in runs of a few rounds.
    """

    axis: ClassVar[Axis] = "pace"
    name: ClassVar[str] = "local"

    steps: int = 16
    """Optimizer steps from one round to the next."""
    outer: Literal["average", "bmuf", "diloco"] = "average"
    rate: float | None = None
    """Of bmuf and diloco: what the mean change is multiplied by."""
    momentum: float | None = None
    """Of bmuf and diloco."""
    state: Literal["keep", "reset"] = "keep"
    """Of the workers' own optimizers at the end of a round."""

    def __post_init__(self) -> None:
        check_whole(self, "steps", self.steps, 1, MOST_STEPS)
        for field, least, most in (("rate", 1e-6, 1e3), ("momentum", 0.0, 0.9999)):
            if (value := getattr(self, field)) is None:
                continue
            if self.outer == "average":
                raise UsageError(f"{self}: average has no {field}; write local({self.steps}, diloco, {field}={value})")
            check_number(self, field, value, least, most)

    def __str__(self) -> str:
        named = {"rate": self.rate, "momentum": self.momentum, "state": self.state}
        more = [f"{name}={write_value(value)}" for name, value in named.items() if value not in (None, "keep")]
        return f"local({', '.join([str(self.steps), self.outer, *more])})"

    @classmethod
    def usage(cls) -> str:
        return "local(16, diloco, rate=0.7, momentum=0.9)"
