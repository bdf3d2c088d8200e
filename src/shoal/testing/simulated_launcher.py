"""The launcher as the simulator runs it: it starts what a plan needs, and hears of views after a while.

Its processes may end at any moment. A member that enters a view meets those of its plan. The members of one plan must
all meet the same ones, unless the launcher knows that the run cannot go on.
"""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.launch.plan_services import PlanServices
from shoal.membership.log_entries import ViewInstalled
from shoal.membership.plan_requests import PreparePlan

if TYPE_CHECKING:
    from shoal.testing.simulator import SimulatedWorld

TICK = 0.05
READY = 0.3
"""Seconds at most until what was started listens."""


@dataclass
class SimulatedServices:
    """What one plan needs."""

    world: "SimulatedWorld"
    start: int
    ready: float
    ended: bool = False

    def is_ready(self) -> bool:
        return self.world.now >= self.ready

    def find_dead(self) -> tuple[str, int] | None:
        return ("a server", 9) if self.ended else None

    def close(self) -> None:
        self.ended = True


class SimulatedLauncher:
    """It decides as the real one does."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world, self._starts = world, itertools.count()
        self._seen = 0
        self.running: dict[int, SimulatedServices]
        """By number of the plan: what listens at its addresses, or did last."""
        self.met: dict[int, set[int]]
        """By number of the plan: what members have met there."""
        self.lost: set[int]
        """Numbers of plans whose processes had ended when members met them: the run would begin again."""
        self._begin()
        self._tick()

    def _begin(self) -> None:
        """The run begins, or begins again because everybody was lost."""
        self.running, self.met, self.lost, self._number = {}, {}, set(), 0
        self.services = PlanServices(self._start("", 0), self._start)

    def _start(self, plan: str, number: int) -> SimulatedServices:
        found = SimulatedServices(
            self._world, next(self._starts), self._world.now + self._world.random.random() * READY
        )
        self.running[number] = found
        return found

    def hear(self, question: PreparePlan) -> None:
        self._read_views()  # the real one ends with its training, and is asked nothing more
        answer = self.services.prepare(question)
        if answer is not None:
            self._world.coordinator.hear_launcher(answer)

    def meet(self, number: int) -> None:
        """A member enters a view with the plan of this number."""
        found = self.running.get(number)
        assert found is not None, f"seed {self._world.seed}: a view has plan {number}, for which nothing was started"
        if found.ended:
            self.lost.add(number)
        self.met.setdefault(number, set()).add(found.start)

    def end_one(self) -> None:
        """Something that was prepared ends."""
        prepared = [each for each in self.services.list_started()[1:] if not each.ended]
        if prepared:
            self._world.random.choice(prepared).ended = True

    def _tick(self) -> None:
        """News of views come as the coordinator has written them."""
        self._read_views()
        for loss in self.services.tick():
            self._world.coordinator.hear_launcher(loss)
        self._world.later(TICK, self._tick)

    def _read_views(self) -> None:
        disk = self._world.coordinator.disk
        for entry in disk[self._seen :]:
            if isinstance(entry, ViewInstalled):
                number = entry.install.view.switches
                # A lower number of the plan: all members were lost, and the run begins again.
                if number < self._number:
                    self._begin()
                self._number = number
                self.services.follow(number)
        self._seen = len(disk)

    def check(self) -> None:
        """AssertionError names the seed."""
        for number, starts in self.met.items():
            assert len(starts) == 1, f"seed {self._world.seed}: members of plan {number} met {len(starts)} servers"
        newest = max(self.met, default=0)
        current = self.services.current
        if newest and newest not in self.lost and not current.ended:
            assert self.met[newest] == {current.start}, f"seed {self._world.seed}: the servers of {newest} were ended"
