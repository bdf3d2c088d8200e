"""The exchange through parameter servers: processes beside the workers that hold shards."""

from typing import ClassVar, Literal

from shoal.core.errors import UsageError
from shoal.plan.term import Axis, PlanTerm
from shoal.wire.settings import check_whole

MOST_SHARDS = 64
# Two, because no third process could come: it would need a way to tell all workers of its key.
MOST_REPLICAS = 2
MOST_LEVELS = 2


class ServerTerm(PlanTerm, frozen=True, tag="server"):
    """Exchanges through server processes that `shoal run` starts beside the workers; each holds one shard of what
    travels, cut evenly. With every(1) the servers add up gradients, the workers' own optimizers step, and training
    equals one process with the whole batch; with local(…) they add up changes of parameters. Servers run no code of the
    script. Between hosts they are reached over links under keys.

    Costs: in every exchange each worker sends all bytes to the servers and gets all bytes back, and each server of k
    gets p/k of them from p workers; on one host a copy through sockets that allreduce does not need. With replicas=2
    all that workers send travels once more, is computed twice, and is answered when both processes have it.
    Cites: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server"; Dean et al. 2012, "Large
    Scale Distributed Deep Networks"; Chun et al. 2016, "Dolphin: Runtime Optimization for Distributed Machine Learning"
    (auto); Chen et al. 2015, "MXNet: A Flexible and Efficient Machine Learning Library for Heterogeneous Distributed
    Systems" (levels).
    Avoid: for synchronous training, where allreduce sends less through any one process; levels=2 where the workers of a
    host differ in speed, because they wait for each other in every step.
    """

    axis: ClassVar[Axis] = "exchange"
    name: ClassVar[str] = "server"

    shards: int | Literal["auto"] = 1
    """Servers, each with a part of what travels; auto: the launcher tries other numbers while the run trains, each for
    some seconds, and keeps the one with which all workers train the most samples a second."""
    replicas: int = 1
    """Processes of each server. With 2 the second does all that the first does and takes over when it is killed."""
    levels: int = 1
    """Under stale(…) and async: 2 lets the workers of a host agree in every step, in its memory, and one of them push
    and pull for all, so that what travels does not depend on how many they are (MXNet's KVStore). Under every(1) and
    local(…) that is so anyway."""
    now: int = 0
    """With auto: how many servers there are by now; 0: one. A run begins with them, and its plan says what it has."""

    def __post_init__(self) -> None:
        if self.shards != "auto":
            check_whole(self, "shards", self.shards, 1, MOST_SHARDS)
            if self.now:
                raise UsageError(f"{self}: now is how many servers auto has come to; write server({self.now})")
        check_whole(self, "now", self.now, 0, MOST_SHARDS)
        check_whole(self, "replicas", self.replicas, 1, MOST_REPLICAS)
        check_whole(self, "levels", self.levels, 1, MOST_LEVELS)

    def __str__(self) -> str:
        written = {"shards": (self.shards, 1), "replicas": (self.replicas, 1), "levels": (self.levels, 1)}
        written["now"] = (self.now, 0)
        changed = ["auto"] if self.shards == "auto" else []
        # auto stands first without its name, so it is not written again.
        named = {name: value for name, (value, usual) in written.items() if value not in (usual, "auto")}
        changed += [f"{name}={value}" for name, value in named.items()]
        return f"{self.name}({', '.join(changed)})" if changed else self.name

    @property
    def servers(self) -> int:
        """How many there are."""
        return self.shards if self.shards != "auto" else max(1, self.now)
