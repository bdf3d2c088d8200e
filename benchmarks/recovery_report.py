"""The page of `recovery.py`, computed from the raw figures of its JSON and from nothing else.

A wanted figure is held or not by what was measured, never by what was hoped for; one without a measurement says so.
"""

import statistics
from typing import Any

Raw = dict[str, Any]
NONE = "–"
FIRST = "Shoal"


def markdown(raw: Raw) -> str:
    names = list(dict.fromkeys(entry["contestant"] for entry in raw["parts"]))
    columns = {name: cells(raw, name) for name in names}
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    table = [[row, *(columns[name].get(row, NONE) for name in names)] for row in rows]
    commands = "\n".join(f"    {command}" for command in raw["commands"])
    return "\n\n".join(
        [
            "# What the loss of a worker costs",
            commands,
            *raw["notes"],
            raw["machine"],
            "## Wanted, and measured under Shoal",
            grid(["figure", "wanted", "measured", ""], wanted(raw)),
            "## All",
            grid([f"{raw['workers']} workers, {raw['lab'] or 'one host'}", *map(raw["versions"].get, names)], table),
            "",
        ]
    )


def grid(head: list[Any], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def part(raw: Raw, name: str, kind: str) -> Raw | None:
    """What was measured of one contestant; the newest, if it was repeated."""
    found = [entry for entry in raw["parts"] if (entry["contestant"], entry["part"]) == (name, kind)]
    return found[-1] if found else None


def losses(raw: Raw, name: str, kind: str, field: str) -> list[float]:
    entry = part(raw, name, kind)
    return [loss[field] for loss in (entry or {}).get("losses", []) if loss[field] is not None] if entry else []


def cells(raw: Raw, name: str) -> dict[str, str]:
    """A column."""
    found: dict[str, str] = {}
    for kind, what in (("kills", "killed"), ("freezes", "frozen")):
        seconds = losses(raw, name, kind, "seconds")
        if seconds:
            again = losses(raw, name, kind, "again")
            found[f"workers {what}"] = str(len(seconds))
            found[f"a step before one is {what}: median, s"] = (
                f"{statistics.median(losses(raw, name, kind, 'step')):.2f}"
            )
            found[f"a worker {what} is noticed: median, worst, s"] = two(losses(raw, name, kind, "noticed"))
            found[f"a worker {what}, others commit again: median, worst, s"] = two(seconds)
            found[f"a worker {what}, steps made again: median, worst"] = f"{statistics.median(again):.0f}, {max(again)}"
    outage, churn = part(raw, name, "coordinator"), part(raw, name, "goodput")
    if outage and "calm" in outage:
        found["coordinator stopped, s"] = f"{outage['outage']:.0f}"
        found["rate meanwhile, of that before"] = f"{outage['during'] / outage['calm']:.0%}"
        found["longest time without a step, s"] = f"{outage['pause']:.2f}"
        found["workers lost, steps made again meanwhile"] = f"{outage['losses']}, {outage['again']}"
    if churn and "calm" in churn:
        found["kills one after another"] = f"{churn['kills']}, every {churn['every']:.0f} s for {churn['churn']:.0f} s"
        found["samples/s in peace"] = f"{churn['calm']:.0f}"
        found["goodput: samples/s that count, of those in peace"] = f"{churn['during'] / churn['calm']:.1%}"
        found["others stand still when one enters: median, worst, s"] = two(churn["standstills"])
    found |= of_samples(raw, name)
    ended = [
        f"{entry['part']}: {entry['error']}" for entry in raw["parts"] if entry["contestant"] == name and entry["error"]
    ]
    return found | ({"ended in": "; ".join(ended).replace("|", "/")} if ended else {})


def of_samples(raw: Raw, name: str) -> dict[str, str]:
    parts = [entry["samples"] for entry in raw["parts"] if entry["contestant"] == name and entry.get("samples")]
    if not parts:
        return {}
    lost, doubled = (sum(each[key] for each in parts) for key in ("lost", "doubled"))
    epochs = sum(each.get("epochs", 0) for each in parts)
    return {"samples lost, doubled": f"{lost}, {doubled}" + (f" ({epochs} whole epochs)" if epochs else "")}


def two(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}, {max(values):.2f}" if values else NONE


def wanted(raw: Raw) -> list[list[str]]:
    """Rows: figure, wanted, measured, held or not."""
    crash, freeze = losses(raw, FIRST, "kills", "noticed"), losses(raw, FIRST, "freezes", "noticed")
    again = losses(raw, FIRST, "kills", "seconds")
    redone = [*losses(raw, FIRST, "kills", "again"), *losses(raw, FIRST, "freezes", "again")]
    limits = [max(3.0, 4 * step) for step in losses(raw, FIRST, "freezes", "step")]
    late = [noticed - limit for noticed, limit in zip(freeze, limits, strict=False)]
    rows = [
        row("a crash is noticed, worst", "≤ 1 s", f"{max(crash):.2f} s", max(crash) <= 1) if crash else [],
        row(
            f"a freeze is noticed, worst of {len(freeze)}",
            f"≤ max(3 s, 4 steps): {min(limits):.2f} s",
            f"{max(freeze):.2f} s",
            max(late) <= 0,
        )
        if freeze
        else [],
    ]
    if again:
        rows += [
            row(
                "survivors commit again, median",
                "≤ 2 s",
                f"{statistics.median(again):.2f} s",
                statistics.median(again) <= 2,
            ),
            row(f"the same, worst of {len(again)}", "≤ 5 s", f"{max(again):.2f} s", max(again) <= 5),
            row("committed steps lost", "0", str(int(sum(redone))), not sum(redone)),
        ]
    return [each for each in [*rows, *_more(raw)] if each]


def _more(raw: Raw) -> list[list[str]]:
    rows = []
    parts = [entry["samples"] for entry in raw["parts"] if entry["contestant"] == FIRST and entry.get("samples")]
    if parts:
        lost, doubled = (sum(each[key] for each in parts) for key in ("lost", "doubled"))
        rows.append(row("samples lost / doubled", "0 / 0", f"{lost} / {doubled}", not lost and not doubled))
    outage, churn = part(raw, FIRST, "coordinator"), part(raw, FIRST, "goodput")
    if outage and "calm" in outage:
        bad = outage["again"] + outage["losses"]
        went_on = outage["pause"] <= max(2.0, 4 * outage["step"])
        rows.append(row(f"coordinator down {outage['outage']:.0f} s: steps lost", "0", str(bad), not bad and went_on))
    if churn and "calm" in churn:
        share = churn["during"] / churn["calm"]
        text = f"goodput, a kill every {churn['every']:.0f} s for {churn['churn']:.0f} s"
        rows.append(row(text, "≥ 85 %", f"{100 * share:.1f} %", share >= 0.85))
    return rows


def row(figure: str, aim: str, measured: str, held: bool) -> list[str]:
    return [figure, aim, measured, "held" if held else "**not held**"]
