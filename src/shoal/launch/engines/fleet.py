"""Keeps `shoal join` running on the machines of an engine, as long as the run lasts.

    machines() ── one is new ──────────> an invitation of its own, start
               ── one is not listed ───> asked to leave
    its relay ends ── refused, or its script failed ──> given up; the run goes on without it
                   ── anything else ──────────────────> started again, ever later, up to `restarts` times

Called by the launcher's one thread; nothing here waits, but `close`.
"""

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.core.clock import Deadline, now
from shoal.core.errors import ShoalError
from shoal.launch.engines.base import EngineMachine, JoinOrder, LaunchEngine
from shoal.launch.engines.relay import RelayOutput
from shoal.launch.placement import PlacementNews

LOOK = 2.0
"""Seconds between two looks at the engine's list of machines."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a lost machine is tried again; doubled each time."""
LEAVES, ENDS = 15.0, 5.0
"""Seconds in which machines end by themselves when the run has ended, and after they were asked to."""
_WORKER = re.compile(r"\[(\d{1,6})\] ?(.*)", re.DOTALL)


@dataclass
class MachineState:
    """One machine, over all its starts."""

    machine: EngineMachine
    output: RelayOutput | None = None
    starts: int = 0
    due: float = 0.0
    over: bool = False
    """Whether it is not started again."""
    removed: bool = False
    """Whether it was taken out of the engine's list, and so asked to leave."""
    words: list[str] = field(default_factory=list)
    """Its last lines that are no worker's."""


class MachineFleet:
    """`wanted`: how many machines at a time; the engine may have more, which then replace lost ones."""

    def __init__(
        self,
        engine: LaunchEngine,
        order: Callable[[EngineMachine], JoinOrder],
        restarts: int | None,
        wanted: int | None = None,
        what: str = "the run",
    ) -> None:
        """`restarts`: of each machine; None: without end. `what` the machines take part in, for messages."""
        self._what = what
        self._engine, self._order, self._restarts, self._wanted = engine, order, restarts, wanted
        self._states: dict[str, MachineState] = {}
        self._news: list[PlacementNews] = []
        self._looked = -LOOK

    @property
    def given_up(self) -> list[str]:
        """The machines that are not started again, if these are all there are."""
        over = [name for name, state in self._states.items() if state.over and state.output is None]
        return over if len(over) == len(self._states) else []

    @property
    def workers(self) -> int:
        """Of the machines that were started, or are to be started again."""
        return sum(state.machine.workers for state in self._active())

    def _active(self) -> list[MachineState]:
        return [state for state in self._states.values() if state.starts and not state.over]

    def tick(self) -> None:
        """Several times a second."""
        if now() - self._looked >= LOOK:
            self._looked = now()
            self._compare()
        for state in list(self._states.values()):
            self._read(state)
        self._start_due()

    def take_news(self) -> list[PlacementNews]:
        news, self._news = self._news, []
        return news

    def _compare(self) -> None:
        """Take over the engine's list: new machines wait for their start, missing ones are asked to leave."""
        try:
            listed = {machine.name: machine for machine in self._engine.machines()}
        except ShoalError as error:
            self._note(f"cannot ask {self._engine.name} for its machines: {error}")
            return
        for name, machine in listed.items():
            known = self._states.get(name)
            # A machine that still leaves keeps its entry, so it is not started a second time beside itself.
            if known is None or (known.removed and known.output is None):  # listed again it is a new machine
                self._states[name] = MachineState(machine)
        for name, state in list(self._states.items()):
            if name not in listed:
                state.removed = True
                if not state.over:
                    self._note(f"{name} is taken out of the list; it leaves {self._what}")
                    state.over = True
                    self._ask_to_leave(state)

    def _ask_to_leave(self, state: MachineState) -> None:
        if state.output is not None:
            self._engine.stop(state.output)

    def _start_due(self) -> None:
        waiting = [s for s in self._states.values() if s.output is None and not s.over and now() >= s.due]
        # Those that were started least: a spare machine comes before one that was lost.
        for state in sorted(waiting, key=lambda state: state.starts):
            running = sum(s.output is not None for s in self._states.values())
            if self._wanted is not None and running >= self._wanted:
                return
            state.starts, state.words = state.starts + 1, []
            try:
                process = self._engine.start(state.machine, self._order(state.machine))
            except ShoalError as error:
                self._lost(state, None, str(error))
                continue
            if process is None:
                state.due = float("inf")  # the engine watches it, not we
            else:
                state.output = RelayOutput(process)

    def _read(self, state: MachineState) -> None:
        output = state.output
        if output is None:
            return
        self._hear(state, output.read())
        code = output.process.poll()
        if code is None:
            return
        self._hear(state, output.drain(Deadline.after(1.0)))
        output.close()
        state.output = None
        if not state.over:
            self._ended(state, code)

    def _hear(self, state: MachineState, lines: list[tuple[str, str]]) -> None:
        for stream, line in lines:
            if found := _WORKER.fullmatch(line):
                self._news.append(PlacementNews(found[2], int(found[1]), stream))
            elif line.strip():
                # The last five are enough to find the line that names the error.
                state.words = [*state.words[-4:], line.strip()]

    def _ended(self, state: MachineState, code: int) -> None:
        # the line that names the error, rather than the one that says where the record is
        told = [word for word in state.words if " failed" in word or "error:" in word] or state.words
        said = told[-1].removeprefix("shoal: ") if told else ""
        if code == 0:
            state.over = True
            self._note(f"{state.machine.name} has left" + (f": {said}" if said else ""))
        else:
            self._lost(state, code, said)

    def _lost(self, state: MachineState, code: int | None, said: str) -> None:
        name, how = state.machine.name, f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
        final = self._engine.find_final_reason(code, state.words) if code is not None else ""
        why = said if code is None else f"{final or how}{f': {said}' if said else ''}"
        state.over = bool(final) or (self._restarts is not None and state.starts > self._restarts)
        if state.over:
            self._note(f"{name} is given up ({why}); {self._what} goes on without it")
            return
        # 10: beyond it the longest pause holds anyway, and powers stay small.
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(state.starts - 1, 10))
        state.due = now() + pause
        of = f" ({state.starts} of {self._restarts})" if self._restarts is not None else ""
        self._note(f"{name} was lost ({why}); it is tried again in {pause:.0f} s{of}")

    def _note(self, text: str) -> None:
        self._news.append(PlacementNews(text))

    def dismiss(self) -> None:
        """Ask every machine to leave, now."""
        for state in self._states.values():
            state.over = True
            self._ask_to_leave(state)

    def forget(self) -> None:
        """In a process forked from the launcher: its relays end with the launcher, not with this one."""
        for state in self._states.values():
            if state.output is not None:
                state.output.close()

    def close(self) -> None:
        """The run is over, and the machines know it: wait for them, then ask, then end their relays."""
        for state in self._states.values():
            state.over = True
        for seconds, number in ((LEAVES, None), (ENDS, signal.SIGTERM), (ENDS, signal.SIGKILL)):
            if number is not None:
                for state in self._states.values():
                    if state.output is not None:
                        state.output.ask_to_end()
                        state.output.signal(number)
            self._await_end(Deadline.after(seconds))

    def _await_end(self, deadline: Deadline) -> None:
        while (left := [s for s in self._states.values() if s.output is not None]) and not deadline.expired:
            for state in left:
                assert state.output is not None
                self._hear(state, state.output.read(0.02))
                self._read(state)
