"""What a plan says of a synchronizer from another package: its name and its arguments; without torch.

A term of the pace axis, as `every` and `local` are. The machinery is made from it when a model is joined.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from shoal.core.term import Axis, NamedTerm
from shoal.wire.settings import check_number, check_whole

if TYPE_CHECKING:
    from shoal.sync.exchange.base import GradientExchange
    from shoal.sync.synchronizer import Synchronizer


class SynchronizerSettings(NamedTerm, ABC):
    """The name and arguments of a synchronizer, as a frozen dataclass; refuses arguments out of range."""

    axis: ClassVar[Axis] = "pace"
    lockstep: ClassVar[bool] = False
    """Whether its synchronizer exchanges gradients in every backward pass; else it agrees on parameters in rounds."""

    @property
    def steps_per_round(self) -> int:
        """Optimizer steps from one agreement to the next; `shoal plan explain` divides the traffic by it."""
        return int(getattr(self, "steps", 1))

    @abstractmethod
    def make_synchronizer(self, exchange: "GradientExchange") -> "Synchronizer":
        """Return a new synchronizer for one join, whose values travel through the plan's `exchange`.

        It inherits from `LockstepSynchronizer` (if `lockstep`) or from `LocalStepsSynchronizer`: a run commits the
        samples of every step of the first, and of every round of the second.
        """

    def check_whole(self, field: str, least: int, most: int) -> None:
        """Raise UsageError unless the argument is a whole number from `least` to `most`."""
        check_whole(self, field, getattr(self, field), least, most)

    def check_number(self, field: str, least: float, most: float) -> None:
        """Raise UsageError unless the argument is a finite number from `least` to `most`."""
        check_number(self, field, getattr(self, field), least, most)
