"""The page of `wire.py`, computed from the raw figures of its JSON and from nothing else.

step / floor, / DDP, / none   medians of one repeat by those of `alone`, `ddp` and `allreduce` in the same repeat
sent                          bytes a worker puts on sockets a step, as its run has recorded them
of none                       the same against `allreduce`
"""

import statistics
from typing import Any

from network_report import (
    FIRST,
    FLOOR,
    check_rows,
    checked,
    network_name,
    ratio_spread,
    step_spread,
    steps_to_goal,
    table,
    turns_of,
)
from wire_marks import NONE, mark_rows, seen_with
from wire_stages import AUTO

from shoal.bench.cells import between

Raw = dict[str, Any]
COLUMNS = (
    "network", "contestant", "turns × steps", "step ms", "step / floor", "step / DDP", "step / none", "sent KB",
    "of none",
)  # fmt: skip
MARKS = ["asked", "model", "hosts", "network", "of", "found", "at most", ""]
GOALS = ["contestant", "steps to goal", "step ms", "s to goal", "of DDP"]


def row(raw: Raw, model: str, rate: int, name: str) -> list[str]:
    """`raw` is that of one number of hosts."""
    network = (rate, 0.0)
    turns = turns_of(raw, model, network, name)
    step = step_spread(turns)
    begin = [network_name(*network), name]
    if step is None:
        skipped = [(each["model"], each["rate"], each["contestant"]) for each in raw["left_out"]]
        return [*begin, "left out" if (model, rate, name) in skipped else "failed", *["-"] * 6]
    counts = sorted({len(steps) for steps in turns.values()})
    others = {other: turns_of(raw, model, network, other) for other in (FLOOR, FIRST, NONE)}
    ratios = ["-" if other == name else between(ratio_spread(turns, theirs)) for other, theirs in others.items()]
    sent, none = sent_of(raw, model, rate, name), sent_of(raw, model, rate, NONE)
    number = f"{len(turns)} × {'–'.join(map(str, counts))}"
    return [*begin, number, between(step, 1e3, 1), *ratios, f"{(sent or 0) / 1e3:.1f}", share(sent, none)]


def sent_of(raw: Raw, model: str, rate: int, name: str) -> float | None:
    """Bytes a step, the median of turns."""
    found = [
        turn["wire"]
        for turn in raw["turns"]
        if (turn["model"], turn["rate"], turn["contestant"]) == (model, rate, name) and turn["steps"]
    ]
    return statistics.median(found) if found else None


def share(sent: float | None, none: float | None) -> str:
    """`1/31.0`; what is more than nine tenths, as it is."""
    if not sent or not none:
        return "-"
    return f"1/{none / sent:.1f}" if sent < 0.9 * none else f"{sent / none:.2f}"


def goal_rows(raw: Raw) -> list[list[str]]:
    """Steps to the goal, times the step in the slow network."""
    rows = []
    for found in seen_with(raw):
        reached = f"{found.steps:g} ({found.least}–{found.most})" + (f", {found.missed} missed" if found.missed else "")
        ratio = f"1/{1 / found.of_first:.1f}" if found.of_first else "-"
        rows.append([found.name, reached, f"{found.step * 1e3:.1f}", f"{found.seconds:.1f}", ratio])
    return rows + [[name, "missed", "-", "-", "-"] for name in never(raw)]


def never(raw: Raw) -> list[str]:
    """Who set out for the goal and reached it with no seed."""
    names = dict.fromkeys(goal["contestant"] for goal in raw["goals"])
    return [name for name in names if not steps_to_goal(raw, "mlp", name)[0]]


def accuracy_rows(raw: Raw) -> list[list[str]]:
    good = [each for each in raw["accuracy"] if each.get("accuracy") is not None]
    return [[each["contestant"], str(each["steps"]), f"{100 * each['accuracy']:.2f} %"] for each in good]


def chosen_rows(raw: Raw) -> list[list[str]]:
    found = {
        (turn["model"], str(turn["hosts"]), network_name(turn["rate"], turn["delay"])): turn["chose"] or "none"
        for turn in raw["turns"]
        if turn["contestant"] == AUTO and turn["steps"] and turn.get("chose") is not None
    }
    return [[*where, codec] for where, codec in found.items()]


def of_hosts(raw: Raw, hosts: int) -> Raw:
    """The part that is of so many hosts, as the functions of `network_report` take it."""
    parts = {kind: [e for e in raw[kind] if e["hosts"] == hosts] for kind in ("turns", "checks", "left_out")}
    return {**raw, **parts, "workers": hosts}


def markdown(raw: Raw) -> str:
    """The whole page."""
    parts = ["# Codecs in slow networks", f"    {raw['command']}", *NOTES, raw["machine"]]
    parts += ["## What was asked", table(MARKS, mark_rows(raw, of_hosts))]
    for model, facts in raw["models"].items():
        size = f"{facts['parameters']:,} parameters, {facts['bytes'] / 1e6:.2f} MB of gradient"
        for hosts in raw["hosts"]:
            part = of_hosts(raw, hosts)
            rows = [row(part, model, rate, name) for rate in raw["rates"] for name in raw["contestants"]]
            parts += [f"## {model}, {hosts} hosts: {size}", table(COLUMNS, rows)]
    if chosen := chosen_rows(raw):
        parts += [f"## What {AUTO} chose", table(["model", "hosts", "network", "codec"], chosen)]
    if rows := accuracy_rows(raw):
        parts += ["## Accuracy on MNIST at equal samples", table(["contestant", "steps", "accuracy"], rows)]
    if rows := goal_rows(raw):
        parts += [f"## Time to {raw['models']['mlp']['goal']} on MNIST, 2 hosts, 100 Mbit/s", table(GOALS, rows)]
    parts += checked([line for hosts in raw["hosts"] for line in check_rows(of_hosts(raw, hosts))])
    return "\n\n".join(parts) + "\n"


NOTES = [
    "Every worker has an emulated host of its own, with one thread, and the hosts share this machine's cores. "
    "Contestants take turns. A turn is a run of its own that passes all rates from fast to slow; the first three steps "
    "and the first one or two at each rate are not counted, except where a step takes more than eight seconds. Links "
    "have no delay; *no limit* is what the lab carries, a few Gbit/s. Step: median and quartiles over all steps of all "
    "turns, each step the mean over the workers. Ratios: of medians of one repeat, to `alone`, which exchanges nothing "
    "(the floor), to DDP, and to `allreduce` without a codec (none). Whoever stands in a figure that was asked for has "
    "two more turns, twice as long.",
    "All train with SGD and momentum 0.9, on the way to a goal with a rate that falls by a twentieth from look to "
    "look. `dgc` has the momentum in the codec and none in the optimizer, and no warm-up, so that every counted step "
    "has its final ratio. `lowrank(1)` has the rank of DDP's PowerSGD hook, which compresses from step 2 on.",
    "Sent: what a worker puts on sockets a step, as recorded; of DDP and its hooks by arithmetic, 2(p-1)/p of the "
    "payload.",
    f"`{AUTO}` travels uncoded for nine steps and then chooses once: it has a run of its own at each rate, and its "
    "steps count from the twelfth on. It is left out where an uncoded step takes more than five seconds (10 Mbit/s): "
    "these nine steps alone would take one to four minutes a turn.",
    "Steps to the goal do not depend on the network: they are measured without limits, over several seeds (median, "
    "least and most; looked at now and then). Seconds to the goal are these steps times the network's median step.",
]
