"""`shoal models derive`: a query finds models, their runs are made again with other options, and ranked."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import forked
import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal.core.errors import UsageError
from shoal.models import Registry, deriving

SCRIPT = """
import argparse, torch, shoal
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
run = shoal.start()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(4, args.width), nn.Linear(args.width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
model, optimizer = run.join(model, optimizer)
x = torch.ones(8, 4)
for step in range(3):
    loss = ((model(x) - 3) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
run.report(error=float(loss), size=float(args.width))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run that became a model."""
    folder = tmp_path_factory.mktemp("derive")
    (folder / "train.py").write_text(SCRIPT)
    forked_run({}, ["run", "--name", "first", "--json", "train.py", "--lr", "0.01"], folder)
    assert [version.ref for version in Registry(folder / "models").list()] == ["train:1"]
    return folder


def forked_run(environment: Mapping[str, str], words: Sequence[str], folder: Path) -> str:
    """As `deriving.start_run`, in a forked process: importing torch takes longer than these trainings."""
    env = {"SHOAL_REGISTER": "1", "OMP_NUM_THREADS": "1", **environment}
    done = forked.command(folder, *words, **env).wait(100)
    return str(done.json["run"]) if done.code == 0 else ""


def shoal(home: Path, *words: str) -> Result:
    places = ["--models", str(home / "models"), "--runs", str(home / "runs")]
    return CliRunner().invoke(app, ["models", "derive", *words, *places])


def test_a_query_mutates_and_ranks_models(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deriving, "start_run", forked_run)
    words = ["where version = 1", "--vary", "width=2,8", "--vary", "lr=0.01,wrong", "--by", "-error"]
    done = shoal(home, *words, "--keep", "1", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    ranked = found["ranked"]
    assert {model["source"] for model in ranked} == {"train:1"}
    assert [model["changes"]["lr"] for model in ranked] == ["0.01", "0.01", "wrong", "wrong"], "failed ones are last"
    assert [bool(model["ref"]) for model in ranked] == [True, True, False, False]
    assert ranked[0]["value"] < ranked[1]["value"], "-error: less is better"
    registry = Registry(home / "models")
    assert found["removed"] == [ranked[1]["ref"]]
    best = registry.get(ranked[0]["ref"])
    assert (best.metrics["size"], best.run) == (float(ranked[0]["changes"]["width"]), ranked[0]["run"])
    assert registry.find(ranked[1]["ref"]) is None
    assert [version.ref for version in registry.list()] == [best.ref, "train:1"]


def test_a_dry_run_prints_the_commands(home: Path) -> None:
    done = shoal(home, "version = 1", "--vary", "lr=1,2", "--vary", "seed=5", "--by", "error", "--dry-run")
    lines = done.output.splitlines()
    assert [line.partition(" && ")[2].split("train.py ")[1] for line in lines] == ["--lr 1", "--lr 2"]
    assert all("--seed 5" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["limit 1", "--vary", "lr", "--by", "error"], "--vary 'lr' is not NAME=VALUE"),
        (["limit 1", "--vary", "lr=1", "--vary", "lr=2", "--by", "error"], "--vary lr is given twice"),
        (["where name = 'none'", "--vary", "lr=1", "--by", "error"], "no version fits"),
        (["limit 1", "--vary", "lr=1", "--by", "error", "--keep", "0"], "--keep 0"),
        (["limit 1", "--vary", f"lr={','.join(map(str, range(300)))}", "--by", "error"], "are 300 runs; 256"),
    ],
)
def test_wrong_commands_are_refused_on_one_line(home: Path, words: list[str], message: str) -> None:
    done = shoal(home, *words)
    assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
    assert message in done.output


def test_a_version_without_a_record_is_named(home: Path, tmp_path: Path) -> None:
    version = Registry(home / "models").list("train")[-1]
    with pytest.raises(UsageError, match=r"train:1 cannot be varied: its run first has no record in"):
        deriving.plan_runs([version], [{"lr": "1"}], tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--lr", "1", "x"], ["x", "--lr", "2"]),
        (["--lr=1", "--lrs", "1"], ["--lrs", "1", "--lr", "2"]),
        ([], ["--lr", "2"]),
    ],
)
def test_an_option_takes_the_place_of_the_old_one(before: list[str], after: list[str]) -> None:
    assert deriving._set(before, "--lr", "2") == after
