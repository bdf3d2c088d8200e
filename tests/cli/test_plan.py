"""`shoal plan`: both commands, in both forms, and how they refuse."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
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


def test_explain_shows_what_each_part_of_a_model_sends(tmp_path: Path) -> None:
    """Four workers: a gathered payload travels three times, and so does the sum of a few 16-bit floats."""
    tensors = {
        "embeddings.weight": torch.zeros(50, 8),
        "head.weight": torch.zeros(4, 8),
        "n.running_var": torch.ones(8),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    command = ["explain", "embeddings.*: topk(0.1); *: fp16", "--model", str(tmp_path / "m.safetensors")]
    explained = json.loads(shoal.invoke(app, [*command, "--workers", "4", "--json"]).stdout)
    rows = {row["pattern"]: row for row in explained["table"]}
    assert [rows[pattern]["parameters"] for pattern in ("embeddings.*", "*")] == [400, 32]
    assert [rows[pattern]["meets"] for pattern in ("embeddings.*", "*")] == ["gather", "sum"]
    assert rows["*"]["sent"] == 32 * 2 * 3 == rows["*"]["plain"] / 2
    assert rows["embeddings.*"]["sent"] <= 400 * 4 * 3 / 5
    assert "embeddings.*        1         400" in shoal.invoke(app, command).stdout
    refused = shoal.invoke(app, ["explain", "embedding.*: fp16; *: int8", *command[2:]])
    assert refused.exit_code == 2
    assert "pattern 'embedding.*' matches no parameter; the nearest are embeddings.weight" in refused.stderr
    refused = shoal.invoke(app, [*command[:2], "--workers", "4"])
    assert "parts differ in size, so give the model too" in refused.stderr


def test_explain_shows_which_layers_travel_as_factors(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(50, 40), "b.weight": torch.zeros(8, 4)}, tmp_path / "m.safetensors")
    command = ["explain", "factors(batch=6)", "--workers", "2"]
    found = json.loads(shoal.invoke(app, [*command, "--model", str(tmp_path / "m.safetensors"), "--json"]).stdout)
    chosen = [(layer["layer"], layer["sends"], layer["factors"], layer["sum"]) for layer in found["layers"]]
    assert chosen == [("a.weight", "factors", 4 * 6 * 90, 4 * 2000), ("b.weight", "sum", 4 * 6 * 12, 4 * 32)]
    assert found["traffic"]["sent"] == 4 * 6 * 90 + 4 * 32
    refused = shoal.invoke(app, command)
    assert "layers differ in shape, so give the model too" in refused.stderr


def test_a_misspelt_plan_is_refused_on_one_line() -> None:
    result = shoal.invoke(app, ["explain", "allredcue"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "shoal: unknown term 'allredcue'; did you mean 'allreduce'?\n"
