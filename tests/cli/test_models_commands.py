"""`shoal models`: every command from the command line, with its errors."""

import json
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import torch
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal.models import Lineage, Registry, load


def shoal(root: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["models", *words], env={"SHOAL_MODELS": str(root)})


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    registry = Registry(root)
    torch.manual_seed(1)
    first = registry.add(
        "digits",
        {"weight": torch.zeros(300, 300), "bias": torch.ones(3)},
        lineage=Lineage(run="one", plan="dgc(0.01)", step=5, samples=50, code="ab" * 32, script="train.py"),
        metrics={"accuracy": 0.98},
    )
    lineage = Lineage(run="two", plan="allreduce", parent=first.digest)
    tensors = {"weight": torch.zeros(300, 300), "bias": torch.full((3,), 3.0)}
    registry.add("digits", tensors, lineage=lineage, metrics={"accuracy": 0.99, "loss": 0.1})
    registry.tag("digits:1", "prod")
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    import shutil

    return shutil.copytree(template, tmp_path / "models")


def test_ls_lists_newest_first(root: Path) -> None:
    out = shoal(root, "ls").output.splitlines()
    assert [line.split()[0] for line in out] == ["model", "digits:2", "digits:1"]
    assert "prod" in out[2] and "accuracy=0.98" in out[2] and "dgc(0.01)" in out[2]  # noqa: PT018  (one line)
    listed = json.loads(shoal(root, "ls", "digits", "--json").output)
    assert [(each["version"], each["aliases"]) for each in listed] == [(2, []), (1, ["prod"])]


def test_an_empty_registry_says_where_it_looked(tmp_path: Path) -> None:
    done = shoal(tmp_path / "none", "ls")
    assert (done.exit_code, done.output) == (0, f"no versions in {tmp_path / 'none'}; a run that ends well adds one\n")
    assert not (tmp_path / "none").exists()


def test_show_has_lineage_and_tensors(root: Path) -> None:
    out = shoal(root, "show", "digits@prod").output
    for text in ("model    digits:1", "5 steps", "train.py (sha256 abababababababab)", "weight  float32[300, 300]"):
        assert text in out
    page = json.loads(shoal(root, "show", "digits", "--json").output)
    assert (page["run"], page["ancestors"], page["metrics"]["loss"]) == ("two", ["digits:1"], 0.1)
    assert page["tensors"][1] == {"name": "bias", "dtype": "float32", "shape": [3]}


def test_diff_says_what_moved(root: Path) -> None:
    found = json.loads(shoal(root, "diff", "digits:1", "digits:2", "--json").output)
    assert found["metrics"] == {"accuracy": [0.98, 0.99], "loss": [None, 0.1]}
    assert found["fields"]["plan"] == ["dgc(0.01)", "allreduce"]
    assert found["tensors"] == [{"name": "bias", "what": "changed", "largest": 2.0, "relative": 2.0}]
    assert "1 tensors are the same, 1 differ" in shoal(root, "diff", "digits:1", "digits:2").output


def test_tag_and_rm(root: Path) -> None:
    assert shoal(root, "rm", "digits:1").exit_code == 2
    assert shoal(root, "tag", "digits:2", "prod").output == "digits@prod is digits:2\n"
    assert shoal(root, "rm", "digits:1").output == "digits:1 is removed; 'shoal models gc' frees its space\n"
    assert shoal(root, "tag", "--delete", "digits@prod").output == "digits@prod is removed; digits:2 stays\n"
    assert json.loads(shoal(root, "gc", "--json").output)["blobs"] == 2, "its chunk and its manifest"
    assert shoal(root, "verify").output == "1 versions read, 0 damaged\n"


def test_verify_names_damage_and_repair_lets_it_be_pulled_again(root: Path, template: Path) -> None:
    registry = Registry(root)
    digest = registry.manifest(registry.get("digits:2")).tensors[1].chunks[0]
    registry.blobs.path(digest).write_bytes(b"other")
    done = shoal(root, "verify", "--repair")
    assert (done.exit_code, "digits:2: blob" in done.output) == (1, True)
    assert shoal(root, "pull", "digits:2", "--from", str(template)).exit_code == 0
    assert shoal(root, "verify").exit_code == 0


def test_gc_keeps_what_has_an_alias(root: Path) -> None:
    shoal(root, "tag", "digits:2", "best")
    assert shoal(root, "gc", "--keep", "1", "--dry-run").output == "0 versions and 0 blobs (0 B) would be removed\n"
    shoal(root, "tag", "--delete", "digits@prod")
    assert shoal(root, "gc", "--keep", "1").output.endswith("removed: digits:1\n")


def test_sql_and_query(root: Path) -> None:
    out = shoal(root, "sql", "select ref, accuracy from versions order by accuracy").output
    assert out.splitlines() == ["ref       accuracy", "digits:1  0.98", "digits:2  0.99"]
    where = "where accuracy > 0.97 and plan like '%dgc%' order by bytes"
    assert [each["version"] for each in json.loads(shoal(root, "query", where, "--json").output)] == [1]
    assert "digits:2" in shoal(root, "query", "loss < 1").output


def test_push_and_pull_copy_what_is_missing(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    done = shoal(root, "push", "digits:1", "--to", str(other), "--aliases")
    assert f"digits:1 is digits:1 in {other}; 3 blobs copied" in done.output
    assert "2 blobs copied" in shoal(root, "push", "digits:2", "--to", str(other)).output, "the frozen weight is there"
    assert "digits:2 is digits:2" in shoal(root, "push", "digits:2", "--to", str(other)).output, "again changes nothing"
    assert [version.aliases for version in Registry(other).list()] == [[], ["prod"]]
    assert Registry(other).get("digits:2").parent == Registry(other).get("digits:1").digest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "digit"], "shoal: no model 'digit' in"),
        (["show", "digits:7"], "shoal: no version 7 of 'digits'"),
        (["rm", "digits"], "shoal: 'digits' names no version; write digits:2 to remove that one"),
        (["tag", "digits:1"], "shoal: give MODEL and ALIAS"),
        (["tag", "digits:1", "No Alias"], "shoal: alias 'No Alias' is not an id"),
        (["sql", "drop table versions"], "shoal: "),
        (["gc", "--keep", "0"], "shoal: --keep 0"),
    ],
)
def test_wrong_commands_are_refused_on_one_line(root: Path, words: list[str], message: str) -> None:
    done = shoal(root, *words)
    assert done.exit_code == 2
    assert done.output.startswith(message)
    assert done.output.count("\n") == 1


def test_its_help_names_every_command() -> None:
    out = CliRunner().invoke(app, ["models", "--help"]).output
    for command in (
        "ls",
        "show",
        "diff",
        "tag",
        "rm",
        "verify",
        "gc",
        "sql",
        "query",
        "export",
        "import",
        "push",
        "pull",
    ):
        assert f" {command} " in out


def test_export_and_import_of_weights(root: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "w.safetensors")
    assert shoal(root, "export", "digits:1", file).output.startswith(f"{file}: safetensors, ")
    assert shoal(root, "import", file, "again").output == f"{file} is again:1 in {root}\n"
    assert Registry(root).get("again").weights == Registry(root).get("digits:1").weights
    assert shoal(root, "export", "digits:1", str(tmp_path / "w.onnx")).output.startswith(
        "shoal: digits:1 has no samples"
    )
    assert shoal(root, "import", str(tmp_path / "absent.onnx"), "again").output.startswith("shoal: no file")


def test_a_checkpoint_becomes_a_version_with_its_runs_lineage(root: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(forked.TRAIN)
    words = ["run", "--name", "one", "--checkpoint", "5steps", "train.py"]
    done = forked.command(tmp_path, *words, OMP_NUM_THREADS="1", SHOAL_RUNS=str(tmp_path / "runs")).wait(100)
    assert done.code == 0, done.err
    newest = max((tmp_path / "runs/one/checkpoints").iterdir())
    assert shoal(root, "import", str(newest), "net").exit_code == 0
    version = Registry(root).get("net")
    assert (version.run, version.step, version.note) == ("one", int(newest.name[5:]), f"checkpoint {newest.name}")
    assert load("net", torch.nn.Linear(4, 2), root) is not None
    assert "is no checkpoint to import" in shoal(root, "import", str(tmp_path), "net").output


def test_listing_does_not_import_torch(root: Path) -> None:
    program = (
        "import sys; from shoal.models import Registry; from shoal.models.queries import query; "
        f"r = Registry({str(root)!r}); r.list(); r.get('digits@prod'); query(r, ''); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")
