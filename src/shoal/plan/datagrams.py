"""The exchange by datagrams: what replicas change travels without anybody waiting for it."""

from typing import ClassVar

from shoal.core.errors import UsageError
from shoal.core.units import BitRate
from shoal.plan.term import Axis, PlanTerm
from shoal.wire.settings import check_whole

MOST_STEPS = 1_000_000
LEAST_BITS = 100_000


class DatagramsTerm(PlanTerm, frozen=True, tag="datagrams"):
    """Every worker makes its own steps on its part of every batch and sends the sum of its changes to all others, block
    by block and again and again, as encrypted UDP datagrams; no worker waits for one, and a later one makes up for one
    that is lost. After some steps, and at the end of a pass, all meet and add up all changes without losses: replicas
    become equal, samples are committed, checkpoints taken, newcomers let in.

    Costs: at most `rate` a worker, headers included, whatever the model; p + 4 copies of the parameters for p workers;
    an exchange of all at a meeting. Gradients are made from parameters that lack what is on its way.
    Cites: Noel & Osindero 2014, "Dogwild! Distributed Hogwild for CPU & GPU".
    Avoid: where an all-reduce keeps up with the steps; with large dense models, because their blocks take long to go
    round; with learning rates that bear no stale steps, because those of all workers add up.
    """

    axis: ClassVar[Axis] = "exchange"
    name: ClassVar[str] = "datagrams"

    rate: str = "100mbit"
    """What one worker may send, between meetings."""
    steps: int = 100
    """Of each worker, from one meeting to the next."""

    def __post_init__(self) -> None:
        check_whole(self, "steps", self.steps, 1, MOST_STEPS)
        self.bytes_a_second  # noqa: B018  (raises for a text that is no rate)

    @property
    def bytes_a_second(self) -> float:
        try:
            bits = BitRate.parse(self.rate).bits
        except UsageError as error:
            raise UsageError(f"{self}: {error}") from None
        if bits < LEAST_BITS:
            raise UsageError(f"{self}: rate must be from 100kbit to 100gbit; write datagrams(rate=100mbit)")
        return bits / 8

    def __str__(self) -> str:
        # Defaults are left out, so that one plan has one text.
        said = [f"rate={self.rate}"] if self.rate != "100mbit" else []
        said += [f"steps={self.steps}"] if self.steps != 100 else []
        return f"{self.name}({', '.join(said)})" if said else self.name

    @classmethod
    def usage(cls) -> str:
        return "datagrams(rate=100mbit, steps=100)"
