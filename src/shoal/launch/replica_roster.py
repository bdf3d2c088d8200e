"""Which process of a replicated service answers, which one stands by, and what is done when one of them ends.

    primary 0, backup 1 ──> 0 dies ──> 1 is promoted, 2 is started as its backup ──> 1 dies ──> 2 is promoted, …
                       └──> 1 dies ──> 2 is started as the backup of 0

Decisions alone, without a process: the launcher follows them, and so does the simulator. The launcher is the parent of
all these processes, so it knows for certain that one has ended, and two never answer at a time.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class StartReplica:
    """Start a process; the first answers members, a later one is the backup of `backs`."""

    start: int
    backs: int | None


@dataclass(frozen=True)
class PromoteReplica:
    """Let a backup answer members; `term` is how often that has happened."""

    start: int
    term: int


@dataclass(frozen=True)
class LeaveAlone:
    """No backup will come any more: let this one answer without."""

    start: int


ReplicaOrder = StartReplica | PromoteReplica | LeaveAlone


class ReplicaRoster:
    """Of one service; its processes are numbered by start. `replacements`: processes that may be started again."""

    def __init__(self, replacements: int) -> None:
        self.primary, self.backup = 0, 1
        self.term = 0
        self.is_ready = False
        """Whether the backup has all that the primary has answered with."""
        self.is_lost = False
        """Whether no process has the state any more."""
        self.is_alone = False
        self._starts, self._left = 2, replacements

    def begin(self) -> list[ReplicaOrder]:
        return [StartReplica(0, None), StartReplica(1, 0)]

    def note_ready(self, start: int) -> None:
        """A backup has the state."""
        self.is_ready = self.is_ready or (start == self.backup and not self.is_alone)

    def note_end(self, start: int) -> list[ReplicaOrder]:
        """A process has ended; returns what to do, in this order."""
        if self.is_lost or start not in (self.primary, self.backup) or (self.is_alone and start == self.backup):
            return []
        was_ready, self.is_ready = self.is_ready, False
        if start == self.backup:
            return self._replace()
        # the backup lacks answers that members may have had already
        if not was_ready:
            self.is_lost = True
            return []
        self.primary, self.term = self.backup, self.term + 1
        return [PromoteReplica(self.primary, self.term), *self._replace()]

    def _replace(self) -> list[ReplicaOrder]:
        if not self._left:
            self.is_alone = True
            return [LeaveAlone(self.primary)]
        self._left -= 1
        self.backup, self._starts = self._starts, self._starts + 1
        return [StartReplica(self.backup, self.primary)]
