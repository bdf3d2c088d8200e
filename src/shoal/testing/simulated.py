"""A member as the simulator runs it: the pure state machine in a simulated process."""

from typing import TYPE_CHECKING, Any

from shoal.membership.member import MemberState
from shoal.membership.protocol import (
    ConfirmResult,
    InstallView,
    JoinRequest,
    LeaseRenewal,
    MemberEvicted,
    PlanRequest,
    ProcessExited,
    ProposeView,
)
from shoal.testing.simulated_work import BATCH, OperationContent, OperationPart, SamplePool, SimulatedState

if TYPE_CHECKING:
    from shoal.testing.simulator import SimulatedWorld

BEAT = 0.25
# Virtual seconds, far fewer than the real lease, so that schedules contain leases that end.
LEASE = 8.0


class SimulatedMember:
    """Computes, exchanges, completes; again."""

    def __init__(self, world: "SimulatedWorld", name: str) -> None:
        self.world, self.id = world, name
        self.machine = MemberState(name)
        self.dead = self.frozen = False
        self.history: list[OperationContent] = []
        self.lineage = 0
        self.pool = SamplePool()
        self.generations: list[int] = []
        self._inbox: list[Any] = []
        self._parts: dict[str, OperationPart] = {}
        self._early: list[Any] = []
        self._lease: tuple[int, ...] | None = None
        self._given: InstallView | None = None
        self._last: ConfirmResult | None = None
        self.plan: tuple[str, int] = ("", 0)
        """What it trains by, and the number of that plan."""
        self.request: PlanRequest | None = None
        self._computed = self._stopped = False
        self._beside = 0
        """Operations completed here while others had begun anew."""
        self._begun: object = None
        self._wants = world.now + (world.random.choice([0.0, 1.0, 4.0]) if world.streaming else 0.0)
        """When it wants in: before that it waits for a stream of the state."""
        world.later(0.0, self._hello)
        world.later(BEAT, self._beat)

    def describe(self) -> str:
        m = self.machine
        return f"view {m.view} promised {m.promised} applied {m.applied} inside {m.inside} blank {m.blank}"

    @property
    def _free(self) -> bool:
        return self.machine.free(self.world.now)

    def die(self, told: bool) -> None:
        self.dead = True
        self.world.graves.append(self.world.members.pop(self.id))
        if told:
            self.world.later(0.1, self._report_death)

    def _report_death(self) -> None:
        self.world.coordinator.receive(ProcessExited(member=self.id, reason="killed"))

    def thaw(self) -> None:
        if self.frozen:
            self.frozen = False
            waiting, self._inbox = self._inbox, []
            for message in waiting:
                self.receive(message)

    def _hello(self) -> None:
        if not self.dead and self.machine.view.generation == 0:
            if not self.frozen:
                self.world.send(self.id, "coordinator", JoinRequest(member=self.id, waits=self.world.now < self._wants))
            self.world.later(1.0, self._hello)

    def _beat(self) -> None:
        if not self.dead:
            if not self.frozen:
                self.world.send(
                    self.id, "coordinator", self.machine.beat(self.world.now, step=self.machine.begun, period=0.3)
                )
                if self.request is not None and self.request.number > self.machine.view.switches:
                    self.world.send(self.id, "coordinator", self.request)
                self._repeat()
            self.world.later(BEAT, self._beat)

    def ask_for_plan(self, plan: str) -> None:
        number = max(self.machine.view.switches, self.request.number if self.request is not None else 0) + 1
        self.request = PlanRequest(member=self.id, plan=plan, number=number)

    def receive(self, message: Any) -> None:
        if self.dead:
            return
        if self.frozen:
            self._inbox.append(message)
            return
        match message:
            case ProposeView():
                standing = self.machine.propose(message)
                if standing is not None:
                    self.world.send(self.id, "coordinator", standing)
            case InstallView():
                self._install(message)
            case LeaseRenewal():
                self.machine.renew(message)
                self._enter()
                self._complete()
            case MemberEvicted():
                self._evicted()
            case OperationPart() | ConfirmResult() | SimulatedState():
                self._peer(message)

    def _evicted(self) -> None:
        self.die(told=False)
        # The launcher starts another process in its slot, under a new id.
        self.world.later(1.0, self.world.add_member)

    def _install(self, install: InstallView) -> None:
        machine, before = self.machine, self.machine.applied
        if install.view.generation != machine.promised or install.view.generation <= machine.view.generation:
            return
        held, view = (self._content() if machine.formed else None), machine.view
        again = machine.install(install)
        self.generations.append(install.view.generation)
        self._follow_plan(install)
        if machine.applied > before and self.id not in install.fresh:
            assert held is not None, f"seed {self.world.seed}: {self.id} commits what it does not hold, after {view}"
            self._commit(held)
            again = False
        self._parts = {}
        if self.id in install.fresh:
            self._lease, self._computed = None, False
            if not install.donor:  # from the start: a new line of history
                self.history, self.pool, self.lineage = [], SamplePool(), install.view.generation
                self.world.lineage = max(self.world.lineage, self.lineage)
                machine.filled(install.view)
                self._begin()
        elif install.donor == self.id:
            self._give(install)
        if self._stopped and self.id not in install.fresh:
            self._begin()
        if again or self._computed:
            self._enter()
        early, self._early = self._early, []
        for message in early:
            self._peer(message)

    def _follow_plan(self, install: InstallView) -> None:
        """Build the view's plan, which only a member that stands between two steps, or has no state, can do."""
        plan = (install.view.plan, install.view.switches)
        between = self._stopped or self.id in install.fresh
        assert between or plan == self.plan, f"seed {self.world.seed}: {self.id} would switch in the middle of a step"
        self.plan = plan

    def _give(self, install: InstallView) -> None:
        state = SimulatedState(
            install.view.generation, self.lineage, tuple(self.history), self.pool.copy(), self.machine.committed_view
        )
        for member in install.fresh:
            self.world.send(self.id, member, state)
        if install.view == self.machine.view:
            self._given = install

    def _repeat(self) -> None:
        """Links are reliable while both ends live: what a cut swallowed is sent again."""
        given, last = self._given, self._last
        if given is not None and given.view == self.machine.view and self.machine.applied == given.through:
            self._give(given)
        if self.machine.inside and self._free:
            self._send_part()
            if self.machine.formed:
                self._send_confirm()
        if (
            last is not None and last.generation == self.machine.view.generation
        ):  # also of one that waits between two steps
            for member in self.machine.view.members:
                self.world.send(self.id, member, last)

    def _peer(self, message: Any) -> None:
        machine = self.machine
        generation = message.generation
        if generation > machine.view.generation:
            # Of a view that this member has not installed yet; read again when it has.
            self._early.append(message)
            return
        # Dropped: what still matters is sent again with the beats (`_repeat`).
        if generation < machine.view.generation or not machine.settled:
            return
        if isinstance(message, SimulatedState):
            self._take(message)
        elif isinstance(message, OperationPart):
            # A member is at most one operation ahead, because it completes none without this one's part.
            if message.number == machine.applied + 1:
                self._parts[message.sender] = message
                self._form()
            elif message.number == machine.applied + 2:
                self._early.append(message)
        elif message.number == machine.applied + 1:
            machine.confirmed(message)
            self._complete()

    def _take(self, state: SimulatedState) -> None:
        if self.machine.blank:
            self.history, self.pool, self.lineage = list(state.history), state.pool.copy(), state.lineage
            self.machine.filled(state.dealt)
            self._begin()

    def _begin(self) -> None:
        """A step: its samples are dealt by the view that formed the last operation."""
        standing = self.machine.begin(self.machine.applied)
        if standing is not None:
            self._stopped = True
            self.world.send(self.id, "coordinator", standing)
            return
        self._stopped = False
        dealt = self.machine.committed_view
        if not self.pool.leased:
            leases = self.pool.deal(len(dealt))
        else:  # taken over with the donor's state
            leases = [self.pool.leased[r * BATCH : (r + 1) * BATCH] for r in range(len(dealt))]
        self._lease = leases[dealt.rank(self.id)] if self.id in dealt else ()
        self._computed = False
        # Marks this step: a timer of an earlier one finds another token and does nothing.
        self._begun = token = object()
        self.world.later(self.world.random.uniform(0.05, 0.4), lambda: self._compute_done(token))

    def _compute_done(self, token: object) -> None:
        if self.dead or token is not self._begun:
            return
        if self.frozen:
            self.world.later(0.1, lambda: self._compute_done(token))
            return
        self._computed = True
        self._enter()

    def _enter(self) -> None:
        if self._free and not self.machine.blank and self._computed and self._lease is not None:
            if not self.machine.inside:
                self.machine.enter()
            self._send_part()

    def _send_part(self) -> None:
        assert self._lease is not None
        machine = self.machine
        part = OperationPart(self.id, machine.view.generation, machine.applied + 1, self._lease, self.plan)
        self._parts[self.id] = part
        for member in machine.view.members:
            if member != self.id:
                self.world.send(self.id, member, part)
        self._form()

    def _form(self) -> None:
        machine = self.machine
        if machine.inside and machine.settled and not machine.formed and set(self._parts) >= set(machine.view.members):
            machine.hold()
            self._send_confirm()
            self._complete()

    def _send_confirm(self) -> None:
        confirm = ConfirmResult(
            member=self.id, generation=self.machine.view.generation, number=self.machine.applied + 1
        )
        self._last = confirm
        for member in self.machine.view.members:
            if member != self.id:
                self.world.send(self.id, member, confirm)

    def _content(self) -> OperationContent:
        view = self.machine.view
        positions = tuple(p for member in view.members for p in self._parts[member].lease)
        plans = {self._parts[member].plan for member in view.members}
        assert plans == {self.plan}, f"seed {self.world.seed}: one operation by several plans: {plans}"
        return OperationContent(view.generation, view.members, positions, self.plan)

    def _complete(self) -> None:
        if self.machine.complete(self.world.now):
            content = self._content()
            self.machine.apply()
            self._commit(content)
            early, self._early = self._early, []
            for message in early:
                self._peer(message)

    def _commit(self, content: OperationContent) -> None:
        # Who wakes up late may still finish what the others finished before, and the one operation that all had
        # confirmed to it when it fell asleep; if all of them are dead nobody sees it. New things it may not.
        known = self.world.committed.setdefault((self.lineage, len(self.history)), content)
        self._beside += known is content and self.lineage != self.world.lineage
        assert self._beside <= 1, f"seed {self.world.seed}: {self.id} trains on beside a newer run"
        self.history.append(content)
        if self.world.services and self.lineage == self.world.lineage:
            self.world.launcher.meet(self.machine.view.switches)
        self.pool.use(content.positions)
        self._parts, self._lease = {}, None
        self._begin()
