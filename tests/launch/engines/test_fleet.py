"""The fleet's decisions, with machines that are shell commands."""

import time
from collections.abc import Callable

from shoal.launch.engines.base import EngineMachine, EngineOptions, JoinOrder, LaunchEngine
from shoal.launch.engines.fleet import MachineFleet
from shoal.launch.engines.relay import RelayProcess, open_relay


class ShellEngine(LaunchEngine):
    """Each machine runs what `commands` says, in the order of its starts."""

    def __init__(self, **commands: list[str]) -> None:
        super().__init__(EngineOptions())
        self.commands, self.listed, self.started = commands, list(commands), list[str]()

    def machines(self) -> list[EngineMachine]:
        return [EngineMachine(name) for name in self.listed]

    def start(self, machine: EngineMachine, order: JoinOrder) -> RelayProcess:
        number = self.started.count(machine.name)
        self.started.append(machine.name)
        return open_relay(["sh", "-c", self.commands[machine.name][number]], order.secret)


WAITS = "while read line; do :; done"
"""Until its input ends: as `shoal join --key -` does."""


def make(engine: ShellEngine, restarts: int = 3, wanted: int | None = None) -> tuple[MachineFleet, list[str]]:
    said: list[str] = []
    return MachineFleet(engine, lambda machine: JoinOrder("", f"for {machine.name}"), restarts, wanted), said


def until(fleet: MachineFleet, said: list[str], what: Callable[[], object]) -> None:
    limit = time.monotonic() + 60.0
    while not what():
        assert time.monotonic() < limit, said
        fleet._looked = -1e9  # look at the list in every round
        fleet.tick()
        said += [f"[{news.worker}] {news.text}" if news.worker is not None else news.text for news in fleet.take_news()]
        time.sleep(0.02)


def heard(said: list[str], text: str) -> Callable[[], bool]:
    return lambda: any(text in line for line in said)


def test_a_machine_that_leaves_the_list_leaves_and_comes_back_as_a_new_one() -> None:
    engine = ShellEngine(a=[WAITS], b=[WAITS, f"echo '[3] back'; {WAITS}"])
    fleet, said = make(engine)
    until(fleet, said, lambda: len(engine.started) == 2)
    engine.listed = ["a"]
    until(fleet, said, heard(said, "b is taken out of the list"))
    engine.listed = ["a", "b"]  # at once: it may not have ended yet
    until(fleet, said, heard(said, "[3] back"))
    assert engine.started == ["a", "b", "b"]
    fleet.close()


def test_what_would_not_help_is_not_tried_again() -> None:
    engine = ShellEngine(a=["echo 'shoal: worker 1 failed: bad data' >&2; exit 1"], b=["exit 9", "exit 2"])
    fleet, said = make(engine)
    until(fleet, said, lambda: sum("given up" in line for line in said) == 2)
    assert any(line.startswith("a is given up (its script failed: worker 1 failed: bad data)") for line in said)
    assert any(line.startswith("b was lost (exit code 9); it is tried again in 1 s (1 of 3)") for line in said)
    assert fleet.workers == 0, "nobody is waited for any more"
    fleet.close()


def test_a_spare_machine_takes_the_place_of_a_lost_one() -> None:
    engine = ShellEngine(a=["exit 2"], b=[WAITS], c=[WAITS])
    fleet, said = make(engine, wanted=2)
    until(fleet, said, lambda: len(engine.started) == 3)
    assert engine.started == ["a", "b", "c"]
    fleet.close()


def test_nothing_runs_after_close() -> None:
    engine = ShellEngine(a=[WAITS], b=["exec sleep 600"])
    fleet, said = make(engine)
    until(fleet, said, lambda: len(engine.started) == 2)
    relays = [state.output.process for state in fleet._states.values() if state.output is not None]
    import shoal.launch.engines.fleet as module

    module.LEAVES, before = 0.1, module.LEAVES
    try:
        fleet.close()
    finally:
        module.LEAVES = before
    assert len(relays) == 2
    assert all(relay.poll() is not None for relay in relays)
