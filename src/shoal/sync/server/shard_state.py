"""What a shard is told, answers and remembers, and the entries of its journal: data without behaviour."""

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.sync.server.rules.base import FloatArray
from shoal.sync.trained import TrainedSamples

RowNumbers = npt.NDArray[np.int64]


class PushOutcome(enum.Enum):
    """What became of a push."""

    APPLIED = "counted: it is in the values, or will be at the end of its round"
    AGAIN = "counted before"
    DROPPED = "its step was taken without it: it counts for nothing, and neither do its samples"
    ADDED = "its step was taken without it: it counts in the one that was open when it came"
    LATE = "its member is not in the view: its samples are somebody else's now"
    REFUSED = "not finite: the clock goes on without it"
    QUARANTINED = "not finite, as the last ones were: nobody waits for this member any more"


# eq=False, because comparing arrays gives no single truth value
@dataclass(frozen=True, eq=False)
class ShardUpdate:
    """What a member pushes: the update of its step `clock`, counted from where it entered."""

    member: str
    clock: int
    values: FloatArray
    weight: float = 1.0
    """Its share of the samples of a step; rounds divide by the sum of all."""
    trained: tuple[TrainedSamples, ...] = ()
    """Leased samples that the step was made of."""
    version: int | None = None
    """Updates in the values that it was made on, and its member's own since: what others have added after them makes it
    stale, and it is scaled by 1/staleness. None: it counts in full, however stale."""
    rows: RowNumbers | None = None
    """Of a table: the places of the rows that `values` change; None: it changes all elements of a shard."""


@dataclass(frozen=True, eq=False)
class ShardValues:
    """What a pull gets. `values` is a copy of its own."""

    member: str
    clock: int
    """The clock that was asked for."""
    minimum: int
    """The updates of all members before this clock are in the values."""
    version: int
    """Updates applied so far; never falls."""
    values: FloatArray


@dataclass(frozen=True)
class ViewEntry:
    """In the journal: the members were these from then on."""

    members: tuple[str, ...]
    start: int | None = None
    """The clock of newcomers; None: that of the slowest member."""


@dataclass(frozen=True)
class ClockEntry:
    """In the journal: this member was excused; None: all clocks were levelled."""

    member: str | None


@dataclass(frozen=True)
class ExpiryEntry:
    """In the journal: the deadline of this step was over."""

    step: int


JournalEntry = ShardUpdate | ViewEntry | ClockEntry | ExpiryEntry


@dataclass
class ShardState:
    """All that a shard remembers, as a replica takes it over."""

    values: FloatArray
    slots: list[FloatArray]
    clocks: dict[str, int]
    """Of the members of the view."""
    version: int = 0
    round: int = 0
    """Of bound 0: the round that is open."""
    held: dict[int, dict[str, ShardUpdate]] = field(default_factory=dict)
    """Of bound 0: pushes of rounds that are not complete."""
    refused: dict[str, int] = field(default_factory=dict)
    """Pushes in a row that were not finite."""
    quarantined: set[str] = field(default_factory=set)
    trained: dict[str, list[TrainedSamples]] = field(default_factory=dict)
    """Leased samples of the pushes that count, since all clocks were levelled; of lost members too."""
    excused: set[str] = field(default_factory=set)
    """Members that push no more before the next meeting of all: nobody waits for their clocks."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Member -> clock of the pull that waits."""

    def copy(self) -> "ShardState":
        """Arrays of updates are never written to, so they are shared."""
        held = {clock: dict(updates) for clock, updates in self.held.items()}
        slots = [slot.copy() for slot in self.slots]
        counts = dict(self.clocks), self.version, self.round, held, dict(self.refused), set(self.quarantined)
        trained = {member: list(found) for member, found in self.trained.items()}
        return ShardState(self.values.copy(), slots, *counts, trained, set(self.excused), dict(self.waiting))

    @property
    def trained_by_lost(self) -> dict[str, list[TrainedSamples]]:
        return {member: found for member, found in self.trained.items() if member not in self.clocks}
