"""The exchange by pairs: replicas mix with another partner after every step."""

from typing import ClassVar, Literal

from shoal.plan.term import Axis, PlanTerm
from shoal.wire.settings import check_whole

MOST_STEPS = 1_000_000


class MixTerm(PlanTerm, frozen=True, tag="mix"):
    """Every worker makes the step of its own gradients; then its parameters become the mean of its own and those of one
    partner, another one after each step: after log2(p) steps a replica holds something of everybody's. After some
    steps, and at the end of a pass, all meet and become equal: samples are committed, checkpoints taken, newcomers let
    in.

    Costs: one exchange with one worker a step, so the parameters' bytes once between hosts whatever the number of
    workers, and one of all at a meeting; a copy of the parameters. Replicas differ between meetings.
    Cites: Zhao & Canny 2013, "Butterfly mixing: Accelerating incremental-update algorithms on clusters".
    Avoid: inside one host, where the sum of all costs no more; with a script that leaves out batches on some workers,
    because partners wait for each other in every step.
    """

    axis: ClassVar[Axis] = "exchange"
    name: ClassVar[str] = "mix"

    by: Literal["butterfly"] = "butterfly"
    """Who mixes with whom: in step t those whose ranks differ in bit t mod log2(p)."""
    steps: int = 64
    """From one meeting of all workers to the next."""

    def __post_init__(self) -> None:
        check_whole(self, "steps", self.steps, 1, MOST_STEPS)

    def __str__(self) -> str:
        return f"{self.name}({self.by})" if self.steps == 64 else f"{self.name}({self.by}, steps={self.steps})"

    @classmethod
    def usage(cls) -> str:
        return "mix(butterfly, steps=64)"
