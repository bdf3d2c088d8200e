"""`shoal plan`: both commands, in both forms, and how they refuse."""

import json
from pathlib import Path

from typer.testing import CliRunner

from shoal.cli.plan import app
from shoal.plan.presets import PRESETS
from shoal.plan.terms import TERMS

shoal = CliRunner()


def test_list_prints_one_json_object() -> None:
    result = shoal.invoke(app, ["list", "--json"])
    listed = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [term["name"] for term in listed["terms"]] == list(TERMS)
    assert [plan["name"] for plan in listed["plans"]] == list(PRESETS)
    assert {tuple(term) for term in listed["terms"]} == {("name", "axis", "text", "summary")}
    assert {tuple(plan) for plan in listed["plans"]} == {("name", "text", "cites", "note")}


def test_list_draws_every_term_and_plan() -> None:
    result = shoal.invoke(app, ["list"])
    assert result.exit_code == 0
    for word in ["Terms", "Named plans", "every(1)", *TERMS, *PRESETS]:
        assert word in result.stdout


def test_explain_speaks_to_people() -> None:
    result = shoal.invoke(app, ["explain", "alone"])
    assert result.exit_code == 0
    assert result.stdout.startswith("plan: alone, every(1)\n")
    assert "Exchanges nothing" in result.stdout


def test_explain_prints_one_json_object_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('exchange = "alone"')
    result = shoal.invoke(app, ["explain", str(tmp_path / "mine.toml"), "--json"])
    explained = json.loads(result.stdout)
    assert explained["plan"] == "alone, every(1)"
    assert [part["axis"] for part in explained["parts"]] == ["exchange", "pace", "wire", "split", "balance"]


def test_a_misspelt_plan_is_refused_on_one_line() -> None:
    result = shoal.invoke(app, ["explain", "allredcue"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "shoal: unknown term 'allredcue'; did you mean 'allreduce'?\n"
