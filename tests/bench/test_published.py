"""Every cell of a published table can be computed again from the raw figures beside it."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import named, number, quartiles, tables

from shoal.cli.systems import find, read_systems

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "benchmarks" / "reports"
sys.path.append(str(ROOT / "benchmarks"))

import local  # noqa: E402
from network_report import ideal_seconds, markdown  # noqa: E402

NETWORKS = [(0, 0.0), (10**8, 0.02)]


def made_up() -> dict[str, Any]:
    """A report nobody measured: two networks, three turns, one contestant that fails, one goal that is missed."""
    names = ["alone", "ddp", "ddp-fp16", "ddp-powersgd", "allreduce"]
    turns = [
        {
            "model": "cnn",
            "rate": rate,
            "delay": delay,
            "contestant": name,
            "repeat": repeat,
            "steps": []
            if name == "ddp-powersgd" and rate
            else [0.1 + 0.01 * place * (n + repeat) for n in range(4 + repeat)],
        }
        for rate, delay in NETWORKS
        for place, name in enumerate(names)
        for repeat in range(3)
    ]
    goals = [
        {
            "model": "cnn",
            "contestant": name,
            "seed": seed,
            "steps": None if name == "ddp-fp16" and seed else 40 + seed,
            "most": 600,
        }
        for name in names[1:]
        for seed in range(3)
    ]
    check = {
        "model": "cnn",
        "rate": 10**8,
        "delay": 0.02,
        "contestant": "allreduce",
        "seed": 0,
        "steps": 41,
        "seconds": 9.5,
    }
    return {
        "command": "python benchmarks/network.py --data DIR",
        "machine": "Measured nowhere.",
        "workers": 4,
        "models": {"cnn": {"parameters": 80202, "bytes": 320808, "goal": "accuracy>=0.97"}},
        "contestants": names,
        "turns": turns,
        "goals": goals,
        "checks": [check],
    }


def published() -> list[Any]:
    found = [pytest.param(path, id=path.stem) for path in sorted(REPORTS.glob("*-network.json"))]
    return [*found, pytest.param(None, id="made-up")]


def seconds_of(raw: dict[str, Any], model: str, network: str, contestant: str) -> dict[int, list[float]]:
    """Repeat -> steps of every turn that a row speaks of and that did not fail."""
    chosen = [t for t in raw["turns"] if (t["model"], t["contestant"]) == (model, contestant)]
    return {t["repeat"]: t["steps"] for t in chosen if named(t["rate"], t["delay"]) == network and t["steps"]}


@pytest.fixture(params=published())
def report(request: pytest.FixtureRequest) -> tuple[dict[str, Any], str]:
    """The raw figures and the page."""
    if request.param is None:
        raw = json.loads(json.dumps(made_up()))
        return raw, markdown(raw)
    return json.loads(request.param.read_text()), request.param.with_suffix(".md").read_text()


def test_every_row_follows_from_the_raw_figures(report: tuple[dict[str, Any], str]) -> None:
    raw, page = report
    for (model, facts), rows in zip(raw["models"].items(), tables(page), strict=False):
        assert len(rows) == len({(t["rate"], t["delay"]) for t in raw["turns"] if t["model"] == model}) * len(
            raw["contestants"]
        )
        for row in rows:
            check_row(raw, model, facts, row)


def check_row(raw: dict[str, Any], model: str, facts: dict[str, Any], row: dict[str, str]) -> None:
    name, network = row["contestant"], row["network"]
    turns = seconds_of(raw, model, network, name)
    if not turns:
        assert row["turns × steps"] == "failed"
        return
    steps = [step for turn in turns.values() for step in turn]
    step = statistics.median(steps)
    assert number(row["turns × steps"]) == len(turns)
    expected = statistics.quantiles(steps, n=4, method="inclusive") if len(steps) > 1 else steps
    assert sorted(quartiles(row["step ms"])) == pytest.approx([1e3 * each for each in expected], abs=0.051)
    if name == "alone":
        assert (row["communication ms"], row["distance"], row["s to goal"]) == ("-", "-", "-")
        return
    check_goal(raw, model, name, step, row)
    floors = [each for turn in seconds_of(raw, model, network, "alone").values() for each in turn]
    if floors:
        check_ring(raw, facts, step - statistics.median(floors), row)
    first = seconds_of(raw, model, network, "ddp")
    ratios = [statistics.median(turns[each]) / statistics.median(first[each]) for each in turns if each in first]
    if ratios:
        assert number(row["step / DDP"]) == pytest.approx(statistics.median(ratios), abs=0.0051)
    else:
        assert row["step / DDP"] == "-"


def check_ring(raw: dict[str, Any], facts: dict[str, Any], spent: float, row: dict[str, str]) -> None:
    assert number(row["communication ms"]) == pytest.approx(1e3 * spent, abs=0.051)
    rate, delay = next((t["rate"], t["delay"]) for t in raw["turns"] if named(t["rate"], t["delay"]) == row["network"])
    if not rate:
        assert (row["ring's ideal ms"], row["distance"]) == ("-", "-")
        return
    p = raw["workers"]
    ideal = 2 * (p - 1) / p * facts["bytes"] * 8 / rate + 2 * (p - 1) * 2 * delay
    assert number(row["ring's ideal ms"]) == pytest.approx(1e3 * ideal, abs=0.051)
    assert number(row["distance"]) == pytest.approx(spent / ideal, abs=0.0051)


def check_goal(raw: dict[str, Any], model: str, name: str, step: float, row: dict[str, str]) -> None:
    seeds = [g["steps"] for g in raw["goals"] if (g["model"], g["contestant"]) == (model, name)]
    reached = [steps for steps in seeds if steps is not None]
    if reached:
        assert number(row["steps to goal"]) == statistics.median(reached)
        assert number(row["s to goal"]) == pytest.approx(statistics.median(reached) * step, abs=0.051)
    else:
        assert row["s to goal"] == "-"
    assert (len(reached) < len(seeds)) == ("missed" in row["steps to goal"])


def test_the_page_is_made_from_the_figures_alone(report: tuple[dict[str, Any], str]) -> None:
    raw, page = report
    assert tables(markdown(raw)) == tables(page)
    assert raw["command"] in page
    assert raw["machine"] in page


def test_runs_in_the_network_itself_stand_beside_what_is_told(report: tuple[dict[str, Any], str]) -> None:
    raw, page = report
    if not raw["checks"]:
        assert "in the network itself" not in page
        return
    rows = tables(page)[-1]
    assert [number(row["s measured"]) for row in rows] == [
        pytest.approx(check["seconds"], abs=0.051) for check in raw["checks"] if check["steps"] is not None
    ]


def test_ddp_and_allreduce_are_compared_in_every_network_with_every_step(report: tuple[dict[str, Any], str]) -> None:
    """Liu et al., Jäger et al.: on the same machine, with the raw figures."""
    raw, page = report
    assert "| ddp |" in page
    assert "| allreduce |" in page
    for model in raw["models"]:
        for network in {named(t["rate"], t["delay"]) for t in raw["turns"]}:
            for contestant in ("ddp", "allreduce"):
                turns = seconds_of(raw, model, network, contestant)
                assert turns, (model, network, contestant)
                assert all(seconds > 0 for steps in turns.values() for seconds in steps)


def test_the_list_of_systems_claims_a_comparison_only_if_one_is_published() -> None:
    (row,) = find(read_systems(), "141")
    assert row.status == "planned" or list(REPORTS.glob("*-network.json"))


def test_the_rings_ideal() -> None:
    assert ideal_seconds(10_000_000, 4, 100e6, 0.02) == pytest.approx(1.2 + 0.24)
    assert ideal_seconds(10_000_000, 4, 0, 0.02) is None


def test_other_tables_hold_what_their_figures_say() -> None:
    own = ("-network", "-wire", "-recovery", "-local", "-local-goal")  # tested by what makes them
    others = [path for path in sorted(REPORTS.glob("*.json")) if not path.stem.endswith(own)]
    assert others
    for path in others:
        rows = json.loads(path.read_text())["rows"]
        assert tables(path.with_suffix(".md").read_text()) == [rows], path.name


def test_tables_of_local_steps_are_made_from_their_figures_alone() -> None:
    for path in sorted(REPORTS.glob("*-local*.json")):
        assert local.markdown(json.loads(path.read_text())) == path.with_suffix(".md").read_text(), path.name
