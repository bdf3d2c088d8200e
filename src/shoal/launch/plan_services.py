"""The services of the plan a run trains by, and of the plans it may be switched to next.

    coordinator asks    their processes are started; once they listen, a view may have the plan
    one of them ends    before its view: the coordinator is told, asks again, and others are started
                        after it: the run cannot go on (`services.py`)
    a view has a plan   its services stay; those of all plans before are ended

Decisions alone, without a process, so that the simulator follows them too. What is lost between an answer and the view
that came of it is known by the numbers: for a request whose processes have ended nothing is started before the
coordinator has counted that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from shoal.core.errors import ShoalError
from shoal.membership.plan_requests import PlanPrepared, PlanUnprepared, PreparePlan

TRIES = 3
"""How often the services of one request may end before they are started no more."""


class StartedServices(Protocol):
    """Of one plan."""

    def is_ready(self) -> bool:
        """Return whether all of them listen."""

    def find_dead(self) -> tuple[str, int] | None:
        """Return the name of one that has ended, and the signal it died of (0: none)."""

    def close(self) -> None:
        """End them."""


Started = TypeVar("Started", bound=StartedServices)


@dataclass
class _PreparedPlan(Generic[Started]):
    plan: str
    started: Started | None = None
    losses: int = 0


class PlanServices(Generic[Started]):
    """Of one run. `current`: the services of the plan it trains by."""

    def __init__(self, current: Started, start: Callable[[str, int], Started]) -> None:
        """`start`: (plan, its number) -> its services, perhaps none; ShoalError if they cannot be started."""
        self.current, self._start = current, start
        self._number = 0
        self._prepared: dict[int, _PreparedPlan[Started]] = {}
        """By number. A view may have any of them, because an older request may be proposed already."""
        self._failed: tuple[str, int] | None = None
        self._notes: list[str] = []

    def prepare(self, asked: PreparePlan) -> PlanPrepared | PlanUnprepared | None:
        """Start what a plan needs; returns the answer to the coordinator, None while there is none."""
        if asked.number <= self._number:
            return None
        found = self._prepared.get(asked.number)
        if found is None or found.plan != asked.plan:  # a coordinator that was started again gives a number again
            self._end(asked.number)
            found = self._prepared[asked.number] = _PreparedPlan(asked.plan)
        if asked.losses < found.losses:
            return PlanUnprepared(number=asked.number, losses=found.losses)
        if found.losses >= TRIES:
            return None
        try:
            if found.started is None:
                found.started = self._start(asked.plan, asked.number)
            return PlanPrepared(asked=asked) if found.started.is_ready() else None
        except (ShoalError, OSError) as error:
            return self._lose(asked.number, found, str(error))

    def tick(self) -> list[PlanUnprepared]:
        """Several times a second: what has ended before any view had its plan."""
        answers = []
        for number, found in self._prepared.items():
            dead = found.started.find_dead() if found.started is not None else None
            if dead is not None:
                answers.append(self._lose(number, found, f"{dead[0]} has ended"))
        return answers

    def _lose(self, number: int, found: _PreparedPlan[Started], why: str) -> PlanUnprepared:
        if found.started is not None:
            found.started.close()
        found.started, found.losses = None, found.losses + 1
        again = "is tried again" if found.losses < TRIES else "is given up, and the run goes on by the plan before"
        self._notes.append(f"the switch to '{found.plan}' {again}: {why}")
        return PlanUnprepared(number=number, losses=found.losses)

    def follow(self, number: int) -> None:
        """A view has the plan of this number."""
        if number <= self._number:
            return
        found, self._number = self._prepared.pop(number, None), number
        self.current.close()
        if found is not None and found.started is not None:
            self.current = found.started
        else:
            # they ended after the view was agreed on: the run begins again at its checkpoint
            self._failed = (f"a server of the plan of switch {number}", 0)
        for older in [each for each in self._prepared if each < number]:
            self._end(older)

    def list_started(self) -> list[Started]:
        return [self.current, *(each.started for each in self._prepared.values() if each.started is not None)]

    def find_dead(self) -> tuple[str, int] | None:
        """As that of the services the run trains by."""
        return self._failed or self.current.find_dead()

    def take_notes(self) -> list[str]:
        """A line for each thing that went wrong, since the last time."""
        notes, self._notes = self._notes, []
        return notes

    def _end(self, number: int) -> None:
        found = self._prepared.pop(number, None)
        if found is not None and found.started is not None:
            found.started.close()

    def close(self) -> None:
        for number in list(self._prepared):
            self._end(number)
        self.current.close()
