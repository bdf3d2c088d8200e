"""Every cell of the table of codecs can be computed again from the raw figures beside it."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import named, number, quartiles, tables

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "benchmarks" / "reports"
sys.path.append(str(ROOT / "benchmarks"))

import wire_docs  # noqa: E402
from wire_report import markdown  # noqa: E402

Report = tuple[dict[str, Any], str]
NAMES = ["alone", "ddp", "ddp-fp16", "ddp-powersgd", "allreduce", "onebit", "dgc(0.001)", "wire(auto)"]
RATES = [0, 10**8, 10**7]
LIMITS = {("dgc(0.001) / alone", 10**8): 1.25, ("onebit / alone", 10**8): 2.5, ("wire(auto) / allreduce", 0): 1.02}


def made_up() -> dict[str, Any]:
    """A report nobody measured: one contestant fails, one is left out, one seed misses the goal."""
    turns = [
        {
            "model": "mlp",
            "hosts": hosts,
            "rate": rate,
            "delay": 0.0,
            "contestant": name,
            "repeat": repeat,
            "steps": []
            if name == "ddp-powersgd" and hosts == 4
            else [0.1 + 0.01 * place * (n + repeat + hosts) for n in range(3 + repeat)],
            "wire": 1000 * (len(NAMES) - place) * (name != "alone"),
        }
        | ({"chose": "onebit(2048)" if rate else ""} if name == "wire(auto)" else {})
        for hosts in (2, 4)
        for rate in RATES
        for place, name in enumerate(NAMES)
        for repeat in range(2)
        if (name, rate) != ("wire(auto)", 10**7)
    ]
    where = {"model": "mlp", "hosts": 2}
    goals = [
        {**where, "contestant": name, "seed": seed, "steps": None if (name, seed) == ("ddp", 2) else 300 + 10 * seed}
        for name in ("ddp", "dgc(0.001)")
        for seed in range(3)
    ]
    left = [
        {"model": "mlp", "hosts": hosts, "rate": 10**7, "contestant": "wire(auto)", "beyond": 5} for hosts in (2, 4)
    ]
    accuracy = [{**where, "contestant": name, "seed": 0, "steps": 250, "accuracy": 0.97} for name in NAMES[1:-1]]
    check = {**where, "rate": 10**8, "delay": 0.0, "contestant": "dgc(0.001)", "seed": 0, "steps": 310, "seconds": 41.5}
    return {
        "command": "python benchmarks/wire.py --data DIR",
        "machine": "Measured nowhere.",
        "hosts": [2, 4],
        "rates": RATES,
        "models": {"mlp": {"parameters": 1_863_690, "bytes": 7_454_760, "goal": "accuracy>=0.98"}},
        "contestants": NAMES,
        "left_out": left,
        "turns": turns,
        "accuracy": accuracy,
        "goals": goals,
        "checks": [check],
    }


def published() -> list[Any]:
    found = [pytest.param(path, id=path.stem) for path in sorted(REPORTS.glob("*-wire.json"))]
    return [*found, pytest.param(None, id="made-up")]


@pytest.fixture(params=published())
def report(request: pytest.FixtureRequest) -> Report:
    """The raw figures and the page."""
    if request.param is None:
        raw = json.loads(json.dumps(made_up()))
        return raw, markdown(raw)
    return json.loads(request.param.read_text()), request.param.with_suffix(".md").read_text()


def under(page: str, title: str) -> list[dict[str, str]]:
    """The table under a title that begins so."""
    return tables(next(part for part in page.split("\n## ") if part.startswith(title)))[0]


def steps_of(raw: dict[str, Any], model: str, hosts: int, network: str, name: str) -> dict[int, list[float]]:
    """Repeat -> steps of every turn that did not fail."""
    chosen = [t for t in raw["turns"] if (t["model"], t["hosts"], t["contestant"]) == (model, hosts, name)]
    return {t["repeat"]: t["steps"] for t in chosen if named(t["rate"], t["delay"]) == network and t["steps"]}


def ratio(own: dict[int, list[float]], other: dict[int, list[float]]) -> float | None:
    found = [statistics.median(own[each]) / statistics.median(other[each]) for each in own if each in other]
    return statistics.median(found) if found else None


def test_every_row_follows_from_the_raw_figures(report: Report) -> None:
    raw, page = report
    for model in raw["models"]:
        for hosts in raw["hosts"]:
            rows = under(page, f"{model}, {hosts} hosts")
            assert len(rows) == len(raw["rates"]) * len(raw["contestants"])
            for row in rows:
                check_row(raw, model, hosts, row)


def check_row(raw: dict[str, Any], model: str, hosts: int, row: dict[str, str]) -> None:
    name, network = row["contestant"], row["network"]
    turns = steps_of(raw, model, hosts, network, name)
    if not turns:
        left = [(e["model"], e["hosts"], named(e["rate"], 0.0), e["contestant"]) for e in raw["left_out"]]
        assert row["turns × steps"] == ("left out" if (model, hosts, network, name) in left else "failed")
        return
    steps = [step for turn in turns.values() for step in turn]
    expected = statistics.quantiles(steps, n=4, method="inclusive") if len(steps) > 1 else steps
    assert number(row["turns × steps"]) == len(turns)
    assert sorted(quartiles(row["step ms"])) == pytest.approx([1e3 * each for each in expected], abs=0.051)
    for column, other in (("step / floor", "alone"), ("step / DDP", "ddp"), ("step / none", "allreduce")):
        found = None if other == name else ratio(turns, steps_of(raw, model, hosts, network, other))
        if found is None:
            assert row[column] == "-"
        else:
            assert number(row[column]) == pytest.approx(found, abs=0.0051)
    check_bytes(raw, model, hosts, row)


def check_bytes(raw: dict[str, Any], model: str, hosts: int, row: dict[str, str]) -> None:
    def sent(name: str) -> float:
        keys = (model, hosts, row["network"], name)
        where = [t for t in raw["turns"] if (t["model"], t["hosts"], named(t["rate"], 0), t["contestant"]) == keys]
        return statistics.median([t["wire"] for t in where if t["steps"]] or [0])

    own, none = sent(row["contestant"]), sent("allreduce")
    assert number(row["sent KB"]) == pytest.approx(own / 1e3, abs=0.051)
    if not own or not none:
        assert row["of none"] == "-"
    elif own < 0.9 * none:
        assert float(row["of none"].removeprefix("1/")) == pytest.approx(none / own, abs=0.051)
    else:
        assert float(row["of none"]) == pytest.approx(own / none, abs=0.0051)


def test_what_was_asked_is_held_or_not(report: Report) -> None:
    raw, page = report
    rows = under(page, "What was asked")
    for row in rows:
        found, most = float(row["found"]), float(row["at most"])
        assert row[""] == ("held" if found <= most else "**not held**") or abs(found - most) < 0.0006
        if row["asked"].startswith("time"):
            continue
        own, other = row["of"].split(" / ")
        both = [steps_of(raw, row["model"], int(row["hosts"]), row["network"], name) for name in (own, other)]
        assert found == pytest.approx(ratio(*both), abs=0.00051)
    asked = {(row["of"], row["network"]): float(row["at most"]) for row in rows}
    for (of, rate), most in LIMITS.items():
        if all(name in raw["contestants"] for name in of.split(" / ")) and rate in raw["rates"]:
            assert asked[of, named(rate, 0.0)] == most


def test_the_best_are_the_best(report: Report) -> None:
    raw, page = report
    for row in (row for row in under(page, "What was asked") if row["asked"].startswith("best")):
        where = (row["model"], int(row["hosts"]), row["network"])
        for name, theirs in zip(row["of"].split(" / "), (ours(raw), ["ddp-fp16", "ddp-powersgd"]), strict=True):
            medians = {other: [s for turn in steps_of(raw, *where, other).values() for s in turn] for other in theirs}
            known = {other: statistics.median(steps) for other, steps in medians.items() if steps}
            assert known[name] == min(known.values())


def ours(raw: dict[str, Any]) -> list[str]:
    return [name for name in raw["contestants"] if name not in ("alone", "allreduce") and not name.startswith("ddp")]


def test_time_to_the_goal_is_steps_times_the_step(report: Report) -> None:
    raw, page = report
    if not raw["goals"]:
        return
    network, seconds = named(10**8, 0.0), {}
    for row in under(page, "Time to"):
        name = row["contestant"]
        reached = [g["steps"] for g in raw["goals"] if g["contestant"] == name and g["steps"] is not None]
        assert ("missed" in row["steps to goal"]) == any(
            g["steps"] is None for g in raw["goals"] if g["contestant"] == name
        )
        if not reached:
            continue
        step = statistics.median(s for turn in steps_of(raw, "mlp", 2, network, name).values() for s in turn)
        seconds[name] = statistics.median(reached) * step
        assert number(row["steps to goal"]) == statistics.median(reached)
        assert number(row["s to goal"]) == pytest.approx(seconds[name], abs=0.051)
        if name != "ddp":
            assert float(row["of DDP"].removeprefix("1/")) == pytest.approx(seconds["ddp"] / seconds[name], abs=0.051)


def test_the_page_is_made_from_the_figures_alone(report: Report) -> None:
    raw, page = report
    assert tables(markdown(raw)) == tables(page)
    assert raw["command"] in page
    assert raw["machine"] in page


def test_the_short_table_says_how_many_times_faster(report: Report) -> None:
    raw, _ = report
    found = iter(tables(wire_docs.section(raw, "some.md")))
    for model in raw["models"]:
        for hosts in raw["hosts"]:
            for row in next(found):
                check_short(raw, model, hosts, row)


def check_short(raw: dict[str, Any], model: str, hosts: int, row: dict[str, str]) -> None:
    name = row["plan"].strip("`")
    for rate in raw["rates"]:
        network = named(rate, 0.0)
        cell = row[network.split(",")[0]].split(" / ")
        for word, other in zip(cell, ("ddp", "allreduce"), strict=True):
            both = [steps_of(raw, model, hosts, network, each) for each in (name, other)]
            told = ratio(*both) if name != other else 1.0
            assert word == "–" if told is None else float(word) == pytest.approx(1 / told, abs=0.0051)


def test_the_documents_hold_the_newest_table() -> None:
    newest = wire_docs.newest()
    if newest is None:
        return
    page = wire_docs.PAGE.read_text()
    told = wire_docs.section(json.loads(newest.read_text()), newest.with_suffix(".md").name)
    assert wire_docs.put(page, told) == page
