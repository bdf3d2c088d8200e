"""Workers that the user adds to a live run, or takes from it: which slots they get, and when it is done.

    shoal scale RUN +2 ──▶ two free slots are due; their workers enter as any newcomer does, between two steps
    shoal scale RUN -1 ──▶ a word on the board; the worker leaves after its step, and others get its samples

A run has memory for `--workers` plus `--spare` slots, laid out before the first worker starts, so no more can be added.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.core.clock import Deadline
from shoal.hosts.status_board import StatusBoard
from shoal.launch.run_requests import ScaleRequest


@dataclass
class WorkerSlot:
    """One worker after the other."""

    starts: int = 0
    """How often a worker was started in it."""
    excused: int = 0
    """How many of these starts no loss caused: the user took the worker out and added another."""
    due: Deadline | None = None
    """When the next one is."""
    reasons: list[str] = field(default_factory=list)
    """Why each of them was lost."""
    quarantined: str = ""
    """Why nobody takes it any more, if nobody does."""
    released: bool = False
    """Whether the user took its worker out of the run."""

    @property
    def is_free(self) -> bool:
        """Whether another worker may be started in it because the user wants one."""
        return self.released or bool(self.quarantined)

    def reopen(self) -> None:
        """Let another worker take it, with all its restarts."""
        self.excused, self.due = self.starts, Deadline.after(0.0)
        self.quarantined, self.released = "", False


class WorkerScaling:
    """Of one run; `slots` are the supervisor's, `capacity` is how many the run has memory for."""

    def __init__(self, slots: dict[int, WorkerSlot], capacity: int, board: StatusBoard) -> None:
        self._slots, self._capacity, self._board = slots, capacity, board
        self.founders = frozenset(slots)
        """Slots whose first worker is one that the run begins with."""
        self.asked = self.done = ""
        """Token of the request that is being carried out, and of the last one that was."""
        self._coming: set[int] = set()
        self.leaving: set[int] = set()
        """Slots whose workers were asked to leave, and have not ended yet."""
        self._departed: set[int] = set()
        """Slots whose workers have ended so, and are still in the view."""

    @property
    def free(self) -> list[int]:
        """Slots that a worker can be added in, those of workers that left first."""
        again = [number for number, slot in self._slots.items() if slot.is_free]
        return [*sorted(again), *(number for number in range(self._capacity) if number not in self._slots)]

    def resolve(self, request: ScaleRequest, least: int) -> ScaleRequest:
        """Return what a number of workers means now; who has been lost and is started again counts as being there."""
        if not request.workers:
            return request
        gone = self.leaving | self._departed
        here = sorted(number for number, slot in self._slots.items() if not slot.is_free and number not in gone)
        wanted = max(request.workers, least)
        return ScaleRequest(add=max(0, wanted - len(here)), remove=tuple(here[wanted:]), token=request.token)

    def begin(self, request: ScaleRequest) -> tuple[list[int], list[int]]:
        """Slots that are taken from now on, and slots whose workers were asked to leave."""
        added = self.free[: request.add]
        removed = [number for number in request.remove if number in self._slots and not self._slots[number].is_free]
        for number in added:
            self._slots.setdefault(number, WorkerSlot()).reopen()
        for number in removed:
            self._slots[number].due = None  # it may be between two workers
            self._board.ask_to_leave(number)
        self._coming, self.leaving = {*self._coming, *added}, {*self.leaving, *removed}
        # workers that have left these slots are waited for no more, because others come
        self._departed -= set(added)
        self.asked = request.token
        return added, removed

    def ended(self, slot: int) -> bool:
        """The worker in a slot has ended; whether because it was asked to."""
        if slot not in self.leaving:
            return False
        self.leaving.discard(slot)
        self._departed.add(slot)
        self._slots[slot].released = True
        return True

    def settle(self, members: Iterable[int]) -> None:
        """Look whether what was asked for is done: newcomers are in the view, and those that left are not."""
        present = set(members)
        # one that was lost for good on its way in comes no more
        self._coming = {number for number in self._coming - present if not self._slots[number].is_free}
        self._departed &= present
        if self.asked and not (self._coming or self.leaving or self._departed):
            self.asked, self.done = "", self.asked
