"""The words of the language: one small frozen value per term, and the table that names them.

A term's docstring is what `shoal plan explain` shows: what it does, then `Costs:`, `Cites:`, `Avoid:`.
A new term is one class and one row of TERMS (and one member of its axis's union below, for the type checker).
Codecs are declared in `wire/builtin.py`, what stands beside them in wrappers.py, order.py and precision.py. Other
packages declare codecs and paces of their own (registry.py).
"""

from typing import ClassVar, Literal

from shoal.core.errors import UsageError
from shoal.core.tree_edges import read_edges
from shoal.plan.balance import BalanceTerm
from shoal.plan.datagrams import DatagramsTerm
from shoal.plan.deadline import DeadlineTerm
from shoal.plan.factors import FactorsTerm
from shoal.plan.local import LocalTerm
from shoal.plan.mix import MixTerm
from shoal.plan.order import ORDERS, OrderTerm
from shoal.plan.precision import PRECISION
from shoal.plan.server import ServerTerm
from shoal.plan.shared import SharedTerm
from shoal.plan.stale import AsyncTerm, StaleTerm
from shoal.plan.term import AXES, Axis, CodecTerm, NamedTerm, PlanTerm
from shoal.plan.wrappers import WRAPPERS, WireTerm
from shoal.wire.builtin import BUILT_IN

__all__ = [
    "AXES",
    "TERMS",
    "AllReduceTerm",
    "AloneTerm",
    "AsyncTerm",
    "Axis",
    "BalanceTerm",
    "CodecTerm",
    "DatagramsTerm",
    "DeadlineTerm",
    "EveryTerm",
    "Exchange",
    "LocalTerm",
    "MixTerm",
    "NamedTerm",
    "OrderTerm",
    "Pace",
    "PlanTerm",
    "ReplicateTerm",
    "ServerTerm",
    "SharedTerm",
    "Split",
    "StaleTerm",
]


class AllReduceTerm(PlanTerm, frozen=True, tag="allreduce"):
    """Adds up the replicas' gradients and gives every replica the same mean, so all stay one model. Over links between
    hosts in one of seven ways: round a ring, through an owner of each part, straight from each to all others, up and
    down a tree, along a chain, through one worker as a star, or by pairs in a butterfly; auto chooses among the first
    three by size. Or along a tree whose edges are written, as in edges=0-1:1-2:1-3, for hosts that are wired like it:
    sums go to worker 0 and come back, and the neighbours of a lost worker take its place.

    Costs: with p workers, each sends 2(p-1)/p of the gradient bytes between hosts, straight p-1 times, in a tree up to
    3 times, in a chain 2 times, the middle of a star p-1 times, in a butterfly log2(p) times, along edges once for each
    edge that it has; inside one host nothing crosses a socket.
    Cites: Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations"; Rabenseifner
    2004, "Optimization of collective reduction operations"; Agarwal et al. 2014, "A reliable effective terascale linear
    learning system" (tree); Wang et al. 2014, "A parameter communication optimization strategy for distributed machine
    learning" (topologies); Thakur et al. 2005, "Optimization of collective communication operations in MPICH"
    (butterfly).
    Avoid: when one link or one worker is much slower than the rest, because every worker waits for it.
    """

    axis: ClassVar[Axis] = "exchange"
    name: ClassVar[str] = "allreduce"

    by: Literal["auto", "ring", "owners", "straight", "tree", "chain", "star", "butterfly"] = "auto"
    """Of links: the way of every bucket; 16-bit floats, which most ways would round at each hop, go through owners."""

    edges: str = ""
    """A tree of workers, or of hosts where these have several, numbered from 0."""

    def __post_init__(self) -> None:
        if self.edges and self.by != "auto":
            raise UsageError(f"{self.name}({self.by}, edges={self.edges}): both say how sums are made; keep one")
        if self.edges:
            # Only for its refusals.
            read_edges(self.edges)

    @property
    def algorithm(self) -> str:
        """How sums are made over links: a word, or edges."""
        return self.edges or self.by

    def __str__(self) -> str:
        given = f"edges={self.edges}" if self.edges else "" if self.by == "auto" else self.by
        return f"{self.name}({given})" if given else self.name

    @classmethod
    def usage(cls) -> str:
        return "allreduce(tree) or allreduce(edges=0-1:1-2)"


class AloneTerm(PlanTerm, frozen=True, tag="alone"):
    """Exchanges nothing: every worker trains by itself on its share of the data. The floor of benchmarks.

    Costs: no bytes and no waiting.
    Avoid: when you want one model from several workers, because each ends with a different one.
    """

    axis: ClassVar[Axis] = "exchange"
    name: ClassVar[str] = "alone"


class EveryTerm(PlanTerm, frozen=True, tag="every"):
    """Exchanges at every optimizer step; with allreduce, training equals one process with the whole batch.

    Costs: one exchange per step; the slowest worker sets the speed of all.
    Cites: Chen et al. 2016, "Revisiting Distributed Synchronous SGD".
    Avoid: when workers differ much in speed, or the transfer takes longer than the computing.
    """

    axis: ClassVar[Axis] = "pace"
    name: ClassVar[str] = "every"

    steps: int = 1
    """Optimizer steps from one agreement to the next."""

    def __post_init__(self) -> None:
        # The type is checked too: True equals 1, but would be written as every(True).
        if type(self.steps) is not int or self.steps != 1:
            raise UsageError(f"{self}: replicas agree at every step, so steps must be 1; write every(1)")


class ReplicateTerm(PlanTerm, frozen=True, tag="replicate"):
    """Every worker holds the whole model and sees its own share of every batch.

    Costs: each worker needs the memory for all parameters, gradients and optimizer state.
    Avoid: when the model does not fit into the memory of one worker.
    """

    axis: ClassVar[Axis] = "split"
    name: ClassVar[str] = "replicate"


Exchange = AllReduceTerm | ServerTerm | AloneTerm | SharedTerm | MixTerm | DatagramsTerm
Pace = EveryTerm | LocalTerm | StaleTerm | AsyncTerm | DeadlineTerm
Split = ReplicateTerm

TERMS: dict[str, type[NamedTerm]] = {
    "allreduce": AllReduceTerm,
    "server": ServerTerm,
    "alone": AloneTerm,
    "shared": SharedTerm,
    "mix": MixTerm,
    "datagrams": DatagramsTerm,
    "every": EveryTerm,
    "local": LocalTerm,
    "stale": StaleTerm,
    "async": AsyncTerm,
    "deadline": DeadlineTerm,
    "replicate": ReplicateTerm,
    **BUILT_IN,
    **WRAPPERS,
    **ORDERS,
    "wire": WireTerm,
    "factors": FactorsTerm,
    **PRECISION,
    "balance": BalanceTerm,
}
"""Name -> class of every built-in term, the default of each axis first."""
