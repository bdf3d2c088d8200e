"""Membership under a random schedule of faults, in virtual time: the same state machines that real processes run.

    world = SimulatedWorld(seed, members=4)
    world.run(60.0)          faults of every kind, then quiet
    world.check()            what must hold, whatever happened

Everything random comes from the seed, so a failure is replayed by its number. Nothing is real but the decisions:
members "train" by exchanging parts of numbered operations over a network that delays, cuts and is cut.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.membership.failure_detector import MembershipRules
from shoal.testing.simulated import LEASE, SimulatedMember
from shoal.testing.simulated_coordinator import SimulatedCoordinator
from shoal.testing.simulated_launcher import SimulatedLauncher
from shoal.testing.simulated_work import OperationContent

SWITCH_SECONDS = 4.0
"""Virtual seconds between two switches of the plan, on average."""
QUIET = 40.0
"""Virtual seconds without faults at the end: whatever is still stuck then is stuck for ever."""


class SimulatedWorld:
    """A coordinator, members, a network between them, and what goes wrong."""

    def __init__(
        self,
        seed: int,
        members: int = 4,
        *,
        faults: bool = True,
        streaming: bool = True,
        switches: bool = False,
        services: bool = False,
    ) -> None:
        """`streaming`: some newcomers wait for a stream of the state first; `switches`: the plan is switched;
        `services`: each plan needs processes of its own, which end now and then before a view has it."""
        self.random, self.now, self.seed = random.Random(seed), 0.0, seed
        self.faults, self.streaming, self.switches, self.services = faults, streaming, switches, services
        self.user_plan = ""
        """What the user asked for last, and asks for again whenever another plan is in its place."""
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        # Breaks ties in the queue, so that the same seed always gives the same order.
        self._order = itertools.count()
        self._sides: dict[str, int] = {}
        self.quiet = False
        """Whether nothing goes wrong any more."""
        self.lineage = 0
        """Of the newest history: all of it goes back to one beginning, unless everybody who knew it was lost."""
        self.committed: dict[tuple[int, int], OperationContent] = {}
        """By lineage and number: what each operation came to, as the first to complete it says."""
        self.started = itertools.count()
        self.members: dict[str, SimulatedMember] = {}
        self.graves: list[SimulatedMember] = []
        self.coordinator = SimulatedCoordinator(
            self, MembershipRules(members=members, lease=LEASE, prepares=switches and services)
        )
        self.launcher = SimulatedLauncher(self)
        for _ in range(members):
            self.add_member()

    def later(self, seconds: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), what))

    def send(self, source: str, target: str, message: Any) -> None:
        """Deliver after a while, unless the two are parted now or then."""
        if self.parted(source, target):
            return
        # Milliseconds as on a local network; one message in fifty is ten times as late, so that messages overtake
        # others.
        delay = self.random.uniform(0.001, 0.03) * (10 if self.random.random() < 0.02 else 1)
        self.later(delay, lambda: self._deliver(source, target, message))
        # A second copy: receivers must bear a message that comes twice.
        if self.random.random() < 0.02:
            self.later(delay * 2, lambda: self._deliver(source, target, message))

    def parted(self, a: str, b: str) -> bool:
        return self._sides.get(a, 0) != self._sides.get(b, 0)

    def _deliver(self, source: str, target: str, message: Any) -> None:
        # Looked at again, because they may have been parted while the message was on its way.
        if self.parted(source, target):
            return
        if target == "coordinator":
            self.coordinator.receive(message)
        elif target in self.members:
            self.members[target].receive(message)

    def add_member(self) -> SimulatedMember:
        member = SimulatedMember(self, f"m{next(self.started)}")
        self.members[member.id] = member
        return member

    def run(self, seconds: float) -> None:
        """Faults for so long, then none until everything had time to settle."""
        moment = 5.0
        while self.faults and moment < seconds:
            self.later(moment, self._fault)
            # A fault every four virtual seconds on average, without memory.
            moment += self.random.expovariate(1 / 4.0)
        for number in range(int(seconds / SWITCH_SECONDS) if self.switches else 0):
            self.later(self.random.uniform(5.0, seconds), partial(self._switch, f"plan {number}"))
            if self.services and self.faults and self.random.random() < 0.5:
                self.later(self.random.uniform(5.0, seconds), self.launcher.end_one)
        if self.switches:
            # Asked for when the faults end, so that `check` knows by which plan all must train.
            self.later(seconds, lambda: self._ask("last"))
        self.later(seconds, self._heal)
        self._until(seconds + QUIET / 2)
        # Progress is judged from the middle of the quiet time on: before it the last faults may still be repaired.
        self.before = {member.id: len(member.history) for member in self.living}
        self._until(seconds + QUIET)

    def _until(self, moment: float) -> None:
        while self._queue and self._queue[0][0] <= moment:
            self.now, _, what = heapq.heappop(self._queue)
            what()
        self.now = moment

    @property
    def living(self) -> list[SimulatedMember]:
        return [member for member in self.members.values() if not member.dead]

    def _fault(self) -> None:
        kinds = [self._crash, self._crash, self._freeze, self._part, self._kill_coordinator, self._join]
        self.random.choice(kinds)()

    def _crash(self) -> None:
        """A process dies, reported by its launcher or (a lost host) by none; another takes its place."""
        if len(self.living) < 2:
            return
        victim = self.random.choice(self.living)
        victim.die(told=self.random.random() < 0.7)
        self.later(self.random.uniform(0.5, 3.0), self.add_member)

    def _freeze(self) -> None:
        if not self.living:  # all are lost, and others have not come yet
            return
        victim = self.random.choice(self.living)
        victim.frozen = True
        # Up to half as long again as a lease, so that some wake up after they were evicted.
        self.later(self.random.uniform(0.2, 12.0), victim.thaw)

    def _part(self) -> None:
        """Some members, perhaps the coordinator too, are on the other side for a while."""
        everyone = [*(member.id for member in self.living), "coordinator"]
        side = self.random.sample(everyone, self.random.randint(1, max(1, len(everyone) // 2)))
        self.part(side, self.random.uniform(0.2, 14.0))

    def part(self, side: list[str], seconds: float) -> None:
        """Part these from the rest."""
        for name in side:
            self._sides[name] = 1
        self.later(seconds, self._sides.clear)

    def _kill_coordinator(self) -> None:
        self.coordinator.kill()
        self.later(self.random.uniform(0.1, 10.0), self.coordinator.restart)

    def _join(self) -> None:
        # Bounds the work of one schedule; more members show nothing that eight do not.
        if len(self.living) < 8:
            self.add_member()

    def _switch(self, plan: str) -> None:
        """The scripts of some workers ask for a plan, or the user does."""
        for member in self.random.sample(self.living, self.random.randint(0, len(self.living))):
            member.ask_for_plan(plan)
        if self.random.random() < 0.3 and not self.quiet:
            self._ask(plan)

    def _ask(self, plan: str) -> None:
        self.user_plan = plan
        self._repeat_asking(plan)

    def _repeat_asking(self, plan: str) -> None:
        if plan == self.user_plan:
            self.coordinator.switch(plan)
            self.later(1.0, lambda: self._repeat_asking(plan))

    def _heal(self) -> None:
        self.quiet = True
        self._sides.clear()
        self.coordinator.restart()
        for member in self.living:
            member.thaw()

    def check(self) -> None:
        """Agreement, order, exactly-once and progress; AssertionError names the seed."""
        everyone = [*self.members.values(), *self.graves]
        decided: dict[tuple[int, int], OperationContent] = {}
        for member in everyone:
            for number, content in enumerate(member.history):
                other = decided.setdefault((member.lineage, number), content)
                assert other == content, f"seed {self.seed}: operation {number} differs: {other} and {content}"
        for member in everyone:
            assert member.generations == sorted(set(member.generations)), (
                f"seed {self.seed}: generations went back at {member.id}"
            )
            taken = [position for content in member.history for position in content.positions]
            assert len(taken) == len(set(taken)), f"seed {self.seed}: a sample was used twice"
        if self.services:
            self.launcher.check()
        for member in self.living if self.switches else ():
            assert member.plan[0] == self.user_plan, (
                f"seed {self.seed}: {member.id} trains by {member.plan}, the user asked for {self.user_plan!r}"
            )
        for member in self.living:
            grown = len(member.history) - self.before.get(member.id, 0)
            # A step takes less than half a virtual second, and twenty seconds were quiet.
            assert grown > 10, f"seed {self.seed}: {member.id} is stuck ({member.describe()})"
            due = set(range(max((p for c in member.history for p in c.positions), default=-1) + 1))
            open_ = set(member.pool.returned) | set(member.pool.leased)
            used = {p for c in member.history for p in c.positions}
            assert due <= used | open_, f"seed {self.seed}: samples were lost"
