"""The paces of parameter servers: workers push changes after every step of their own, and may run ahead of others."""

from typing import ClassVar, Literal

from shoal.core.errors import UsageError
from shoal.core.term import write_value
from shoal.plan.term import Axis, PlanTerm
from shoal.wire.settings import check_number, check_whole

MOST_STEPS = 1_000_000
ROUND = 100


class StaleTerm(PlanTerm, frozen=True, tag="stale"):
    """Every worker makes steps by its own optimizer and pushes the change of its parameters to the servers, by its
    share of the samples; the servers add it. A worker may be at most `bound` steps ahead of the slowest. It pulls new
    values when those it has would be staler than that (SSP), or with eager=true after every step (ESSP). With bound 0
    and plain SGD it equals every(1). Every `round` steps all workers meet: there newcomers enter and checkpoints are
    taken, and BatchNorm's statistics become their mean. With allreduce in the place of servers every step is made with
    the mean gradient of `bound` steps before, which travels while the next step is computed: all replicas stay equal,
    the first steps apply nothing, and what is pending is applied when a pass ends.

    Costs: a push of the parameters' size per step; a pull every bound + 1 steps or so, with eager=true every step. Two
    more copies of the parameters on a worker. With allreduce the exchange of every(1), hidden behind the next step, and
    `bound` copies.
    Cites: Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"; Dai et al.
    2015, "High-Performance Distributed ML at Scale through Parameter Server Consistency Models" (eager); Jiang et al.
    2017, "Heterogeneity-aware Distributed Parameter Servers" (adaptive); Cui et al. 2016, "GeePS: Scalable deep
    learning on distributed GPUs with a GPU-specialized parameter server" (prefetch); Li et al. 2018, "Pipe-SGD: A
    Decentralized Pipelined SGD Framework for Distributed Deep Net Training" (with allreduce).
    Avoid: where all workers are equally fast, because stale values only cost; with large bounds and momentum; adaptive
    rates where the learning rate is small, because they make the steps smaller still.
    """

    axis: ClassVar[Axis] = "pace"
    name: ClassVar[str] = "stale"

    bound: int = 3
    """Steps a worker may be ahead of the slowest."""
    eager: Literal["false", "true"] = "false"
    rates: Literal["equal", "adaptive"] = "equal"
    """adaptive: a push counts the less the more others have pushed since the values that it was made on."""
    prefetch: Literal["false", "true"] = "false"
    """true: a pull travels while the next batch is loaded, and is waited for before the next forward pass."""
    samples: Literal["static", "leased"] = "static"
    """Who trains what between two meetings: the same number of batches for everybody, or as many as each leases."""
    round: int = ROUND
    """Steps from one meeting of all workers to the next; of leased samples, on average."""

    def __post_init__(self) -> None:
        check_whole(self, "bound", self.bound, 0, MOST_STEPS)
        if self.bound == 0 and self.rates == "adaptive":
            raise UsageError(f"{self}: with bound 0 no push is stale; write stale(3, rates=adaptive), or stale(0)")
        check_whole(self, "round", self.round, 1, MOST_STEPS)

    @property
    def steps(self) -> int:
        """Optimizer steps from one push to the next."""
        return 1

    def __str__(self) -> str:
        # Defaults are left out, so that one plan has one text.
        named = {
            "eager": (self.eager, "false"),
            "rates": (self.rates, "equal"),
            "prefetch": (self.prefetch, "false"),
            "samples": (self.samples, "static"),
            "round": (self.round, ROUND),
        }
        more = [f"{name}={write_value(value)}" for name, (value, usual) in named.items() if value != usual]
        return f"stale({', '.join([str(self.bound), *more])})"

    @classmethod
    def usage(cls) -> str:
        return "stale(3, eager=true, round=100)"


class AsyncTerm(PlanTerm, frozen=True, tag="async"):
    """As stale(…), but no worker waits for another between two meetings. With rule=adagrad or rule=sgd workers push
    gradients instead of changes, and the servers make the step with `rate`: the script's optimizer then changes
    nothing, and its schedule and its weight decay have no effect. With speculate=0.5 a step begins again if, before its
    forward pass has ended, half as many updates as there are other workers have come since the last pull: it pulls
    them, and the forward pass is made again with the same samples.

    Costs: a push and a pull of the parameters' size per step; one more pull and forward pass for each restart.
    Cites: Dean et al. 2012, "Large Scale Distributed Deep Networks" (Downpour SGD, with Adagrad at the server);
    Mitliagkas et al. 2016, "Asynchrony begets momentum"; Zhang et al. 2018, "Stay Fresh: Speculative Synchronization
    for Fast Distributed Machine Learning" (speculate).
    Avoid: with high momentum, because asynchrony adds about 1 - 1/p of its own for p workers.
    """

    axis: ClassVar[Axis] = "pace"
    name: ClassVar[str] = "async"

    rule: Literal["add", "sgd", "adagrad"] = "add"
    """What servers do with a push: add a change, or make a step by a gradient."""
    rate: float | None = None
    """Of sgd and adagrad: the learning rate at the servers."""
    prefetch: Literal["false", "true"] = "false"
    """As for stale(…)."""
    samples: Literal["static", "leased"] = "static"
    """As for stale(…): leased, a worker that is always slower trains less, and delays no other."""
    speculate: float = 0.0
    """Updates of each other worker, on average, after which a forward pass is made again; 0: never."""
    round: int = ROUND
    """Steps from one meeting of all workers to the next; of leased samples, on average."""

    def __post_init__(self) -> None:
        check_whole(self, "round", self.round, 1, MOST_STEPS)
        if self.speculate and self.prefetch == "true":
            raise UsageError(f"{self}: both say when values are pulled for a step; remove speculate or prefetch")
        check_number(self, "speculate", self.speculate, 0.0, 100.0)
        if self.rule == "add" and self.rate is not None:
            raise UsageError(f"{self}: changes are added as they are; write async(rule=adagrad, rate={self.rate})")
        if self.rule != "add" and self.rate is None:
            raise UsageError(f"{self}: the servers make the step, so they need a rate; write rate=0.01")
        if self.rate is not None:
            check_number(self, "rate", self.rate, 1e-9, 1e3)

    @property
    def steps(self) -> int:
        """Optimizer steps from one push to the next."""
        return 1

    def __str__(self) -> str:
        named = {
            "rule": (self.rule, "add"),
            "rate": (self.rate, None),
            "prefetch": (self.prefetch, "false"),
            "samples": (self.samples, "static"),
            "speculate": (self.speculate, 0.0),
            "round": (self.round, ROUND),
        }
        more = [f"{name}={write_value(value)}" for name, (value, usual) in named.items() if value != usual]
        return f"async({', '.join(more)})" if more else "async"

    @classmethod
    def usage(cls) -> str:
        return "async(rule=adagrad, rate=0.01)"
