"""The exchange of one host: its workers train on one copy of the parameters."""

from typing import ClassVar

from shoal.plan.term import Axis, PlanTerm
from shoal.wire.settings import check_whole

MOST_STEPS = 1_000_000


class SharedTerm(PlanTerm, frozen=True, tag="shared"):
    """All workers of one host train on one copy of the parameters, and of what SGD and Adagrad keep, in shared memory
    without locks: each makes its own steps on its part of every batch, and sees those of the others at once. After some
    steps all meet, and the copy stands still for a moment: samples are committed, checkpoints taken, newcomers let in.
    With local(16) each host has a copy, and after 16 steps of each worker the copies become their mean by samples.

    Costs: no bytes, no waiting in a step, and the memory of one model for all workers, but for gradients and Adam's
    state. Two workers that write an element in the same moment may lose one update, and gradients are made from
    parameters that move.
    Cites: Niu et al. 2011, "Hogwild!: A lock-free approach to parallelizing stochastic gradient descent"; Candel et al.
    2015, "Deep Learning with H2O" (averages between hosts).
    Avoid: across hosts without local(…), which it refuses; when a run must give the same bits again; with large dense
    updates of many workers, because they wait for each other's cache lines and their stale steps add up.
    """

    axis: ClassVar[Axis] = "exchange"
    name: ClassVar[str] = "shared"

    steps: int = 100
    """Steps of each worker from one meeting to the next."""

    def __post_init__(self) -> None:
        check_whole(self, "steps", self.steps, 1, MOST_STEPS)

    def __str__(self) -> str:
        return self.name if self.steps == 100 else f"{self.name}(steps={self.steps})"

    @classmethod
    def usage(cls) -> str:
        return "shared(steps=100)"
