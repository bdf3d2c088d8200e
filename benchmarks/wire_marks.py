"""What was asked of codecs, held against what was measured: held or not held, nothing else."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from network_report import FIRST, FLOOR, network_name, ratio_spread, step_spread, steps_to_goal, turns_of

Raw = dict[str, Any]
NONE = "allreduce"
PEERS = (FIRST, "ddp-fp16", "ddp-powersgd")
HOOKS = PEERS[1:]
SLOW = 100_000_000
OF_FLOOR = {"dgc(0.001)": 1.25, "onebit": 2.5}
"""Steps at 100 Mbit/s, of the floor."""
OF_NONE = {"wire(auto)": 1.02}
"""Steps without a limit, of those without a codec."""
OF_GOAL = 1 / 8
"""Time to the goal at 100 Mbit/s, of DDP's."""
GOAL_MODEL, GOAL_HOSTS = "mlp", 2


@dataclass(frozen=True)
class Reached:
    """A contestant's way to the goal."""

    name: str
    steps: float
    least: int
    most: int
    missed: int
    step: float
    seconds: float
    of_first: float | None
    """None: it is the first, or that was not measured."""


def mark_rows(raw: Raw, of_hosts: Callable[[Raw, int], Raw]) -> list[list[str]]:
    """A row for each figure that was asked for, where it was measured."""
    rows = []
    for model in raw["models"]:
        for hosts in raw["hosts"]:
            for rate in raw["rates"]:
                for asked, of, found, most in _asked(of_hosts(raw, hosts), model, rate):
                    rows.append([asked, model, str(hosts), network_name(rate, 0.0), of, *verdict(found, most)])
    ours = {found.name: found.of_first for found in seen_with(raw) if found.of_first and not found.missed}
    if winner := min(ours, key=lambda name: ours[name], default=None):
        place = [GOAL_MODEL, str(GOAL_HOSTS), network_name(SLOW, 0.0), f"{winner} / {FIRST}"]
        rows.append(["time to the goal, of DDP's", *place, *verdict(ours[winner], OF_GOAL)])
    return rows


def verdict(found: float, most: float) -> list[str]:
    return [f"{found:.3f}", f"{most:g}", "held" if found <= most else "**not held**"]


def _asked(raw: Raw, model: str, rate: int) -> Iterator[tuple[str, str, float, float]]:
    """What, of which contestants, found and at most."""
    limits = OF_FLOOR if rate == SLOW else OF_NONE if not rate else {}
    other = NONE if limits is OF_NONE else FLOOR
    for name, most in limits.items():
        if (found := ratio(raw, model, rate, name, other)) is not None:
            yield f"step, of {'no codec' if other == NONE else 'the floor'}", f"{name} / {other}", found, most
    own, hook = (best(raw, model, rate, names) for names in (codecs(raw), HOOKS))
    if own and hook and (found := ratio(raw, model, rate, own, hook)) is not None:
        yield "best codec, of DDP's best hook", f"{own} / {hook}", found, 1.0


def contenders(raw: Raw, model: str, rate: int) -> set[str]:
    """Everybody in a figure that was asked for, but the pair that is to be as good as equal."""
    pair = {best(raw, model, rate, names) for names in (codecs(raw), HOOKS)} - {None}
    return {FLOOR, *OF_FLOOR, *map(str, pair)} if rate == SLOW else set(map(str, pair))


def codecs(raw: Raw) -> list[str]:
    """Of the contestants, those of ours that code."""
    return [name for name in raw["contestants"] if name not in (FLOOR, NONE, *PEERS)]


def best(raw: Raw, model: str, rate: int, names: list[str] | tuple[str, ...]) -> str | None:
    """Whose median step is shortest."""
    spreads = {name: step_spread(turns_of(raw, model, (rate, 0.0), name)) for name in names}
    known = {name: found.median for name, found in spreads.items() if found}
    return min(known, key=lambda name: known[name], default=None)


def ratio(raw: Raw, model: str, rate: int, name: str, other: str) -> float | None:
    """The median of ratios of one repeat's medians."""
    found = ratio_spread(*(turns_of(raw, model, (rate, 0.0), each) for each in (name, other)))
    return found.median if found else None


def seen_with(raw: Raw) -> list[Reached]:
    """Who got to the goal with any seed, by the figures; DDP first."""
    part = {**raw, "turns": [turn for turn in raw["turns"] if turn["hosts"] == GOAL_HOSTS]}
    found: list[Reached] = []
    for name in dict.fromkeys([FIRST, *(goal["contestant"] for goal in raw["goals"])]):
        step = step_spread(turns_of(part, GOAL_MODEL, (SLOW, 0.0), name))
        reached, missed = steps_to_goal(raw, GOAL_MODEL, name)
        if step is None or not reached:
            continue
        steps = statistics.median(reached)
        seconds = steps * step.median
        first = next((each.seconds for each in found if each.name == FIRST), None)
        of = seconds / first if first and name != FIRST else None
        found.append(Reached(name, steps, min(reached), max(reached), missed, step.median, seconds, of))
    return found
