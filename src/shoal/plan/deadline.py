"""The pace of synchronous steps that do not wait for the slowest workers."""

from typing import ClassVar, Literal

from shoal.core.term import write_value
from shoal.plan.stale import MOST_STEPS, ROUND
from shoal.plan.term import Axis, PlanTerm
from shoal.wire.settings import check_number, check_whole

SECONDS = 60.0


class DeadlineTerm(PlanTerm, frozen=True, tag="deadline"):
    """All workers make a step together on the server, without waiting for the slowest: a step is taken as soon as all
    but `backups` workers have pushed their changes, or `seconds` after the first of them; those that came make up for
    the others. A worker that comes late goes on with the step that is open then. Its push comes to nothing, and its
    samples are leased again, or with late=add counts by its share in that step. Samples are leased, so a slow
    worker trains fewer batches. Every `round` steps all workers meet, as under stale(…).

    Costs: a push and a pull of the parameters' size per step, and the computing of late workers.
    Cites: Chen et al. 2016, "Revisiting Distributed Synchronous SGD" (backup workers).
    Avoid: among equally fast workers, because it throws work away; with late=drop where a worker is always slower and
    has data that the others lack.
    """

    axis: ClassVar[Axis] = "pace"
    name: ClassVar[str] = "deadline"
    samples: ClassVar[str] = "leased"

    seconds: float = SECONDS
    """After the first push of a step; then it is taken with what has come."""
    backups: int = 0
    """Workers that are not waited for at all."""
    late: Literal["drop", "add"] = "drop"
    """What becomes of a push that comes after its step."""
    round: int = ROUND
    """Steps from one meeting of all workers to the next, on average."""

    def __post_init__(self) -> None:
        check_number(self, "seconds", self.seconds, 0.001, 1e6)
        check_whole(self, "backups", self.backups, 0, 4095)
        check_whole(self, "round", self.round, 1, MOST_STEPS)

    @property
    def steps(self) -> int:
        """Optimizer steps from one push to the next."""
        return 1

    def __str__(self) -> str:
        named = {"backups": (self.backups, 0), "late": (self.late, "drop"), "round": (self.round, ROUND)}
        more = [f"{name}={write_value(value)}" for name, (value, usual) in named.items() if value != usual]
        return f"deadline({', '.join([write_value(self.seconds), *more])})"

    @classmethod
    def usage(cls) -> str:
        return "deadline(0.5, backups=1)"
