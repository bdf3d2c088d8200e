"""The coordinator as the simulator runs it: its process may be killed at any moment, its disk outlives it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.membership.coordinator import MembershipCoordinator
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.log_entries import AskLauncher, Effect, Entry, WriteEntry
from shoal.membership.plan_requests import PlanPrepared, PlanUnprepared

if TYPE_CHECKING:
    from shoal.testing.simulator import SimulatedWorld

TICK = 0.1


@dataclass
class SimulatedCoordinator:
    """The coordinator's process: its disk outlives it."""

    world: "SimulatedWorld"
    rules: MembershipRules
    disk: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine: MembershipCoordinator | None = None
        self.restart()
        self._tick()

    def kill(self) -> None:
        self.machine = None

    def restart(self) -> None:
        if self.machine is None:
            # Everything it knows comes from the log, as after a real restart.
            self.machine = MembershipCoordinator(self.rules, self.world.now, list(self.disk))

    def _tick(self) -> None:
        if self.machine is not None:
            self._do(self.machine.tick(self.world.now))
        self.world.later(TICK, self._tick)

    def receive(self, message: Any) -> None:
        if self.machine is not None:
            self._do(self.machine.hear(message, self.world.now))

    def switch(self, plan: str) -> None:
        """The launcher says that the user wants another plan."""
        if self.machine is not None:
            self._do(self.machine.switch(plan, self.world.now))

    def hear_launcher(self, said: PlanPrepared | PlanUnprepared) -> None:
        """The launcher says whether what a plan needs runs."""
        if self.machine is not None:
            self._do(self.machine.hear_launcher(said, self.world.now))

    def _do(self, effects: Sequence[Effect]) -> None:
        """One after the other; a kill may come between any two."""
        for effect in effects:
            # Between any two effects: a real process may die after its log is written and before others are told.
            if self.world.random.random() < 0.0005 and not self.world.quiet:
                self.kill()
                self.world.later(2.0, self.restart)
                return
            if isinstance(effect, WriteEntry):
                self.disk.append(effect.entry)
            elif isinstance(effect, AskLauncher):
                self.world.later(0.05, partial(self.world.launcher.hear, effect.question))
            else:
                self.world.send("coordinator", effect.member, effect.order)
