"""The exchange of one host: its workers train on one copy of the parameters."""

from typing import ClassVar

from shoal.plan.term import Axis, PlanTerm
from shoal.wire.settings import check_whole

MOST_STEPS, MOST_CLUSTERS = 1_000_000, 64


class SharedTerm(PlanTerm, frozen=True, tag="shared"):
    """All workers of one host train on one copy of the parameters, and of what SGD and Adagrad keep, in shared memory
    without locks: each makes its own steps on its part of every batch, and sees those of the others at once. After some
    steps all meet, and the copy stands still for a moment: samples are committed, checkpoints taken, newcomers let in.
    With local(16) each host has a copy, and after 16 steps of each worker the copies become their mean by samples.
    With clusters=2 each half of the workers of a host has a copy; a token goes round the copies, and the one that
    has it takes in what the others have changed. When all meet, every copy is the start and the changes of all.

    Costs: no bytes, no waiting in a step, and the memory of one model for all workers, but for gradients and Adam's
    state; with n clusters that of 2 n + 1 models, and a pass over one whenever the token goes on. Two workers that
    write an element in the same moment may lose one update, and gradients are made from parameters that move.
    Cites: Niu et al. 2011, "Hogwild!: A lock-free approach to parallelizing stochastic gradient descent"; Candel et al.
    2015, "Deep Learning with H2O" (averages between hosts); Zhang, Hsieh & Akella 2016, "HogWild++: A New Mechanism for
    Decentralized Asynchronous Stochastic Gradient Descent" (clusters).
    Avoid: across hosts without local(…), which it refuses; when a run must give the same bits again; with large dense
    updates of many workers, because they wait for each other's cache lines and their stale steps add up. Clusters are
    for hosts with several sockets; on one socket they save nothing.
    """

    axis: ClassVar[Axis] = "exchange"
    name: ClassVar[str] = "shared"

    steps: int = 100
    """Steps of each worker from one meeting to the next."""
    clusters: int = 1
    """Copies: one for all workers of the host, or one for each of so many groups of neighbours."""
    hold: int = 1
    """Steps of a cluster's first worker before it passes the token on; more where a pass over all parameters takes
    longer than a step."""

    def __post_init__(self) -> None:
        check_whole(self, "steps", self.steps, 1, MOST_STEPS)
        check_whole(self, "clusters", self.clusters, 1, MOST_CLUSTERS)
        check_whole(self, "hold", self.hold, 1, MOST_STEPS)

    def __str__(self) -> str:
        # Defaults are left out, so that one plan has one text.
        named = {"steps": (self.steps, 100), "clusters": (self.clusters, 1), "hold": (self.hold, 1)}
        written = ", ".join(f"{name}={value}" for name, (value, default) in named.items() if value != default)
        return f"{self.name}({written})" if written else self.name

    @classmethod
    def usage(cls) -> str:
        return "shared(steps=100, clusters=1, hold=1)"
