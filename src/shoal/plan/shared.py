"""The exchange of one host: its workers train on one copy of the parameters."""

from typing import ClassVar

from shoal.plan.term import Axis, PlanTerm
from shoal.wire.settings import check_whole

MOST_STEPS, MOST_CLUSTERS = 1_000_000, 64


class SharedTerm(PlanTerm, frozen=True, tag="shared"):
    """All workers of one host train on one copy of the parameters and of the optimizer's state, in shared memory and
    without locks: each makes its own steps on its part of every batch, and sees those of the others at once. After some
    steps all meet, and the copy stands still for a moment: samples are committed, checkpoints taken, newcomers let in.
    With clusters, each of as many groups of workers has a copy of its own; a token goes round, and who has it passes
    its copy's changes on to the next one. When all meet, the copies become their mean.

    Costs: no bytes, no waiting in a step, and the memory of one model for all workers, but for gradients; with n
    clusters of n models. Two workers that write an element in the same moment may lose one update, and gradients are
    made from parameters that move.
    Cites: Niu et al. 2011, "Hogwild!: A lock-free approach to parallelizing stochastic gradient descent"; Zhang et al.
    2016, "HogWild++: A New Mechanism for Decentralized Asynchronous Stochastic Gradient Descent" (clusters).
    Avoid: across hosts, which it refuses; when a run must give the same bits again; with large dense updates of many
    workers, because they wait for each other's cache lines and their stale steps add up.
    """

    axis: ClassVar[Axis] = "exchange"
    name: ClassVar[str] = "shared"

    steps: int = 100
    """Steps of each worker from one meeting to the next."""
    clusters: int = 1
    """Copies: one for all workers, or one for each of as many groups of neighbours."""

    def __post_init__(self) -> None:
        check_whole(self, "steps", self.steps, 1, MOST_STEPS)
        check_whole(self, "clusters", self.clusters, 1, MOST_CLUSTERS)

    def __str__(self) -> str:
        named = {"steps": (self.steps, 100), "clusters": (self.clusters, 1)}
        written = ", ".join(f"{name}={value}" for name, (value, default) in named.items() if value != default)
        return f"{self.name}({written})" if written else self.name

    @classmethod
    def usage(cls) -> str:
        return "shared(steps=100, clusters=1)"
