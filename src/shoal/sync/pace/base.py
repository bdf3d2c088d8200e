"""The contract of a pace: what it is told while a worker trains.

begun()       the first gradient of a backward pass is there
ready(i)      parameter i's gradient is complete for this pass
ended()       the pass is over; when this returns, `p.grad` is what the plan says it is
stand_in()    take part in one exchange with nothing: this worker had no sample in a step of the others
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class ExchangeCost:
    """Seconds and bytes since the run began."""

    encode: float = 0.0
    wait: float = 0.0
    transfer: float = 0.0
    """Seconds in which anything was under way, where the engine tells when it came in."""
    exposed: float = 0.0
    """Of `transfer`: seconds this worker waited."""
    ready: list[float] = field(default_factory=list)
    """Of the last complete exchange, per bucket: seconds from its start until it was full."""
    done: list[float] = field(default_factory=list)
    """Of the last complete exchange, per bucket: seconds from its start until the result was back."""
    parts: Sequence[Sequence[int]] = ()
    """Of the last complete exchange, per bucket: which parameters were in it."""


class SyncPace(ABC):
    """WHEN replicas agree. Called by the thread that runs the backward pass."""

    spent: ExchangeCost
    late: bool = False
    """Whether nothing leaves before the pass has ended: there is something to be said first."""

    open_ended: bool = False
    """Whether gradients may still be on their way when a pass has ended: then it is told of every `arriving` one."""

    def arriving(self) -> None:  # noqa: B027  (only asked where a pass may be open)
        """A gradient is about to be added to what `p.grad` holds."""

    def rescale(self) -> float:
        """What sums are multiplied by if members were lost since the samples were dealt; replaced by whoever knows."""
        return 1.0

    @abstractmethod
    def begun(self) -> None: ...

    @abstractmethod
    def ready(self, index: int) -> None: ...

    @abstractmethod
    def ended(self) -> None: ...

    @abstractmethod
    def stand_in(self) -> None: ...

    def state(self) -> dict[str, Tensor]:
        """What this worker carries from step to step and a checkpoint must keep; most carry nothing."""
        return {}

    def shared(self) -> dict[str, Tensor]:
        """What all workers carry alike from step to step, and newcomers take over."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027  (nothing to do is right for most)
        """Go on with what `state` gave, in this or an earlier process; not called where nothing was kept."""
