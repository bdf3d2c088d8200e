"""What the workers of a host show each other of their steps at servers, in its memory.

    full[s] = n         the change of slot s in the host's step n is in its copy; left[s] = r: it has left round r
    chosen[s] = n       slot s speaks for step n, and `among[s][o]` = n says that the change of slot o is in it
    done[s] = n         the values after step n are in the results of slot s; begun[s] = r: those of round r

A step's number is the host's clock after it, so it only grows, and whoever takes the slot of a lost worker inherits no
flag that it could mistake. Each worker writes in rows and memory of its own, so one that was given up and wakes up
changes nothing that others read.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import Evicted, ViewEnded
from shoal.groups.base import WorkerGroup
from shoal.groups.flag_waiter import FlagWaiter
from shoal.hosts.fences import full_fence
from shoal.membership.session import MembershipSession, slot_of
from shoal.membership.view import MembershipView
from shoal.sync.engine.slot_flags import Flags, flag_bytes, flag_rows, round_to_lines, tensor_at

ROWS = 7
"""Of flags, beside one for each slot that may speak."""
FLOAT = 4


class HostMemory:
    """Of one worker and one join, whose parameters have `numel` numbers."""

    def __init__(self, group: WorkerGroup, numel: int) -> None:
        host, self.slot = group.copy_host, group.slot
        # a worker alone on its host has a slot of the run, and memory for one
        places = list(host.places) if self.slot in host.places else [self.slot]
        slots, size = max(places) + 1, round_to_lines(FLOAT * numel)
        at = flag_bytes(1, ROWS + slots, slots)
        memory = host.region(at + 2 * len(places) * size)
        (rows,) = flag_rows(memory, 1, ROWS + slots, slots)
        self.full, self.left, self.chosen, self.done, self.begun, self.minimum, weights = rows[:ROWS]
        self._among: Sequence[Flags] = rows[ROWS:]
        self._weights: npt.NDArray[np.float64] = weights.view(np.float64)
        self._places = places

        def lay_out(start: int) -> dict[int, Tensor]:
            return {s: tensor_at(memory, start + n * size, torch.float32, numel) for n, s in enumerate(places)}

        self._copies, self._results = lay_out(at), lay_out(at + len(places) * size)

    def offer(self, change: Tensor, weight: float) -> None:
        """Show this worker's change, times its weight."""
        self._copies[self.slot].copy_(change)
        self._weights[self.slot] = weight

    def add_up(self, slots: Sequence[int]) -> tuple[Tensor, float]:
        """Return the sum of these workers' changes, and that of their weights."""
        total = self._copies[slots[0]].clone()
        for slot in slots[1:]:
            total += self._copies[slot]
        return total, float(self._weights[list(slots)].sum())

    def note_choice(self, slots: Sequence[int], number: int) -> None:
        """As the speaker, before anything leaves: whose changes are in this step."""
        own = self._among[self.slot]
        own[list(slots)] = number
        full_fence()
        # only now: who sees the number must see every mark of the choice
        self.chosen[self.slot] = number
        full_fence()

    def find_choice(self, number: int) -> list[int]:
        """What a speaker that is lost had chosen for this step; nothing if there was none."""
        full_fence()
        for slot in self._places:
            if self.chosen[slot] == number:
                return [each for each in self._places if self._among[slot][each] == number]
        return []

    def find_done(self, row: Flags, number: int) -> int | None:
        """A slot whose worker has published this step, or round, in this row."""
        full_fence()
        return next((slot for slot in self._places if row[slot] == number), None)

    def results(self, slot: int) -> Tensor:
        return self._results[slot]


class RoundWatch:
    """In the place of a session, for waits inside a step: disturbed by members that are lost or leave the round."""

    def __init__(self, session: MembershipSession, left: Flags) -> None:
        self._session, self._left = session, left
        # this and `disturbed` are all that a FlagWaiter asks of a session
        self.elastic = session.elastic
        self.look()

    def look(self) -> None:
        """Take what there is for seen."""
        self._seen = self._state()

    def _state(self) -> tuple[int, bytes]:
        return self._session.newest_view.generation, self._left.tobytes()

    @property
    def disturbed(self) -> bool:
        return self._state() != self._seen


class HostPartners:
    """Who is on this worker's host, who of them speaks, and waits for them."""

    def __init__(self, group: WorkerGroup, memory: HostMemory, round_number: Callable[[], int]) -> None:
        """`round_number`: of the round that is open here."""
        self._group, self._memory, self._round = group, memory, round_number
        self._session = group.session
        self._watch = RoundWatch(self._session, memory.left)
        # a speaker may have to wait for other hosts as long as this before it has anything to say
        self._waiter = FlagWaiter(group.board, memory.slot, 2 * group.seconds, self._watch)
        self.names: dict[int, str] = {}
        """Slot -> the member in it, of this host."""

    def first_of(self, view: MembershipView) -> int:
        """The slot of the first worker of this host in a view."""
        return slot_of(self._here(view)[0])

    def _here(self, view: MembershipView) -> list[str]:
        hosts, member = self._group.hosts_of_members(), self._session.member
        if member not in view:
            raise Evicted(f"{member} is no member any more; the others go on without it")
        return [each for each in view.members if hosts.get(each, each) == hosts.get(member, member)]

    def present(self) -> list[int]:
        """Slots of this host's workers that are in this round, the one that speaks first."""
        here, left = self._here(self._session.newest_view), self._round() + 1
        # names of lost workers stay: their changes may be in a push that is made later
        self.names.update({slot_of(each): each for each in here})
        return [slot for slot in map(slot_of, here) if self._memory.left[slot] != left]

    def await_speaker(self, row: Flags, number: int) -> int:
        """Return the slot whose results have this number; this worker's own if it has to make them."""
        while True:
            # before the members are read, so that a change after that ends the wait
            self._watch.look()
            first = self.present()[0]
            if first == self._memory.slot:
                # one that is lost may have published before
                done = self._memory.find_done(row, number)
                return self._memory.slot if done is None else done
            if self._reaches(row, [first], number):
                return first

    def await_full(self, number: int) -> list[int]:
        """Return the slots whose change in this step is here, once all have theirs that are in this round."""
        while True:
            self._watch.look()
            present = self.present()
            if self._reaches(self._memory.full, present, number):
                return [slot for slot in present if self._memory.full[slot] == number]

    def _reaches(self, row: Flags, slots: list[int], number: int) -> bool:
        self._waiter.wait_for(slots)
        try:
            self._waiter.until(row, number)
        except ViewEnded:
            return False
        return True

    def publish(self, row: Flags, number: int) -> None:
        self._waiter.publish(row, number)
