"""The table of `network.py`, computed from the raw figures of its JSON and from nothing else.

communication = step - floor                              floor: the plan `alone` in the same lab
ideal         = 2(p-1)/p * bytes * 8 / rate  +  2(p-1) * one-way delay between hosts (two links)
distance      = communication / ideal                     of a ring all-reduce of all float32 gradients
time to goal  = steps to the goal (median of seeds) * step (median) in this network
"""

import statistics
from typing import Any

from shoal.bench.cells import between
from shoal.bench.statistics import MedianSpread, spread

Raw = dict[str, Any]
FLOOR, FIRST = "alone", "ddp"
COLUMNS = (
    "network", "contestant", "turns × steps", "step ms", "step / DDP", "communication ms", "ring's ideal ms",
    "distance", "steps to goal", "s to goal",
)  # fmt: skip


def ideal_seconds(bytes_: float, workers: int, rate: float, delay: float) -> float | None:
    """What a ring all-reduce takes at least; None where the rate is not limited."""
    if not rate:
        return None
    return 2 * (workers - 1) / workers * bytes_ * 8 / rate + 2 * (workers - 1) * 2 * delay


def network_name(rate: float, delay: float) -> str:
    """`100 Mbit/s, 20 ms a link`."""
    if not rate:
        speed = "no limit"
    else:
        speed = f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"
    return f"{speed}, {delay * 1e3:g} ms a link"


def networks(raw: Raw, model: str) -> list[tuple[float, float]]:
    """Rate and delay of every network of a model, as they were measured."""
    return list(dict.fromkeys((turn["rate"], turn["delay"]) for turn in raw["turns"] if turn["model"] == model))


def turns_of(raw: Raw, model: str, network: tuple[float, float], contestant: str) -> dict[int, list[float]]:
    """Repeat -> seconds of its measured steps; failed turns are left out."""
    return {
        turn["repeat"]: turn["steps"]
        for turn in raw["turns"]
        if (turn["model"], (turn["rate"], turn["delay"]), turn["contestant"]) == (model, network, contestant)
        and turn["steps"]
    }


def step_spread(turns: dict[int, list[float]]) -> MedianSpread | None:
    return spread([step for steps in turns.values() for step in steps])


def ratio_spread(turns: dict[int, list[float]], first: dict[int, list[float]]) -> MedianSpread | None:
    """Ratios of the medians of turns of the same repeat: what slowed both cancels out."""
    pairs = [
        (statistics.median(turns[repeat]), statistics.median(first[repeat])) for repeat in turns if repeat in first
    ]
    return spread([own / other for own, other in pairs])


def steps_to_goal(raw: Raw, model: str, contestant: str) -> tuple[list[int], int]:
    """Steps of the seeds that reached the goal, and how many did not."""
    found = [g["steps"] for g in raw["goals"] if (g["model"], g["contestant"]) == (model, contestant)]
    return [steps for steps in found if steps is not None], sum(steps is None for steps in found)


def row(raw: Raw, model: str, network: tuple[float, float], contestant: str) -> list[str]:
    turns = turns_of(raw, model, network, contestant)
    name = [network_name(*network), contestant]
    step, floor = step_spread(turns), step_spread(turns_of(raw, model, network, FLOOR))
    if step is None:
        return [*name, "failed", *["-"] * 7]
    counts = sorted({len(steps) for steps in turns.values()})
    number = f"{len(turns)} × {'–'.join(map(str, counts))}"
    ratio = ratio_spread(turns, turns_of(raw, model, network, FIRST))
    found = [*name, number, between(step, 1e3, 1), "-" if contestant == FLOOR else between(ratio)]
    return found + _communication(raw, model, network, contestant, step, floor) + _goal(raw, model, contestant, step)


def _communication(
    raw: Raw, model: str, network: tuple[float, float], contestant: str, step: MedianSpread, floor: MedianSpread | None
) -> list[str]:
    ideal = ideal_seconds(raw["models"][model]["bytes"], raw["workers"], *network)
    if contestant == FLOOR or floor is None:
        return ["-"] * 3
    spent = step.median - floor.median
    return [f"{spent * 1e3:.1f}", f"{ideal * 1e3:.1f}" if ideal else "-", f"{spent / ideal:.2f}" if ideal else "-"]


def _goal(raw: Raw, model: str, contestant: str, step: MedianSpread) -> list[str]:
    reached, missed = steps_to_goal(raw, model, contestant)
    if not reached:
        return [f"missed by {missed}" if missed else "-", "-"]
    steps = statistics.median(reached)
    seeds = f"{steps:g} ({min(reached)}–{max(reached)})" + (f", {missed} missed" if missed else "")
    return [seeds, f"{steps * step.median:.1f}"]


def table(columns: tuple[str, ...] | list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *rows])


def check_rows(raw: Raw) -> list[list[str]]:
    """Runs to the goal in the slow network itself, against what the table says of them."""
    rows = []
    for check in raw["checks"]:
        step = step_spread(turns_of(raw, check["model"], (check["rate"], check["delay"]), check["contestant"]))
        if step is None or check["steps"] is None:
            continue
        told = check["steps"] * step.median
        network = network_name(check["rate"], check["delay"])
        figures = [str(check["steps"]), f"{told:.1f}", f"{check['seconds']:.1f}", f"{check['seconds'] / told:.2f}"]
        rows.append([check["model"], network, check["contestant"], *figures])
    return rows


def checked(rows: list[list[str]]) -> list[str]:
    """Runs to the goal in the network itself, if there were any."""
    columns = ["model", "network", "contestant", "steps to goal", "s told", "s measured", "measured / told"]
    return ["## One run to the goal, in the network itself", table(columns, rows)] if rows else []


def markdown(raw: Raw) -> str:
    """The whole page."""
    parts = ["# Step time and time to a goal in slow networks", f"    {raw['command']}", *NOTES, raw["machine"]]
    for model, facts in raw["models"].items():
        size = f"{facts['parameters']:,} parameters, {facts['bytes'] / 1e6:.2f} MB of gradient"
        parts.append(f"## {model}: {size}, goal {facts['goal']}")
        rows = [row(raw, model, network, name) for network in networks(raw, model) for name in raw["contestants"]]
        parts.append(table(COLUMNS, rows))
    parts += checked(check_rows(raw))
    return "\n\n".join(parts) + "\n"


NOTES = [
    "Every worker has an emulated host of its own, with one thread, and the hosts share this machine's cores. "
    "Contestants take turns; a turn is a run of its own whose first steps (nine with the CNN, two with the "
    "transformer, one with long steps) are not counted; the rate is limited from the second on. Step: median and "
    "quartiles over all steps of all turns, each step the mean over the workers. Step / DDP: ratios of medians of one "
    "repeat.",
    "*No limit* is what the lab carries, a few Gbit/s. Delays are per link, and from host to host a frame passes two. "
    "`alone` exchanges nothing: it is the floor. Communication is the step less the floor; what is hidden behind "
    "computing, a host's own or that of another host on the same core, is not in it. The ring's ideal is "
    "2(p-1)/p · bytes · 8 / rate + 2(p-1) · (2 · delay) for all gradients as float32; distance is communication by "
    "ideal. TCP alone makes it 1.05, for its payload is 95.6 % of a frame; hooks that send less may get below 1.",
    "Steps to the goal do not depend on the network: they are measured once, without limits, over several seeds "
    "(median, least and most; looked at every few steps). Seconds to the goal are these steps times the median step "
    "of the network; evaluation is not in them.",
]
