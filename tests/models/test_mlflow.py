"""Versions to MLflow's registry and back, by MLflow's own client on SQLite."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_registry import same
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from shoal.core.errors import UsageError
from shoal.models import Lineage, Registry, RegistryError
from shoal.models.mlflow import FOLDER, MANIFEST, WEIGHTS, _add_files, is_mlflow


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "models")
    tensors = {"big": torch.randn(300, 300), "half": torch.randn(3).bfloat16(), "count": torch.tensor(4)}
    lineage = Lineage(run="one", plan="dgc(0.01)", step=7)
    registry.add("digits", tensors, files={"notes.txt": b"hello"}, lineage=lineage, metrics={"accuracy": 0.9})
    registry.tag("digits", "prod")
    return registry


def shoal(registry: Registry, *words: str) -> Result:
    return CliRunner().invoke(app, ["models", *words, "--models", str(registry.root)])


@pytest.mark.soak("page")  # importing MLflow and making its tables takes ten seconds of processor
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # MLflow's and Alembic's own
def test_a_version_goes_to_mlflow_and_comes_back(registry: Registry, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/db/mlflow.db"
    done = shoal(registry, "push", "digits@prod", "--to", f"mlflow={uri}")
    assert done.exit_code == 0, done.output
    assert done.output.endswith(f"digits:1 is digits:1 in MLflow: {uri}\n"), "after what MLflow says of its tables"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    there = client.get_model_version_by_alias("digits", "prod")
    run = client.get_run(there.run_id)
    assert (run.data.params["plan"], run.data.metrics["accuracy"]) == ("dgc(0.01)", 0.9)
    other = Registry(tmp_path / "other")
    done = shoal(other, "pull", "digits@prod", "--from", f"mlflow={uri}")
    assert done.exit_code == 0, done.output
    mine, theirs = registry.get("digits"), other.get("digits")
    assert theirs.digest == mine.digest
    assert same(other.tensors(theirs), registry.tensors(mine))
    assert other.file(theirs, "notes.txt") == b"hello"
    (tmp_path / "foreign").mkdir()
    save_file({"w": torch.ones(2)}, tmp_path / "foreign" / "model.safetensors")
    client.create_model_version("digits", (tmp_path / "foreign").as_uri())
    assert shoal(other, "pull", "digits:2", "--from", f"mlflow={uri}").exit_code == 0
    assert other.get("digits:2").note == f"digits:2 of MLflow at {uri}"
    absent = shoal(other, "pull", "nothing", "--from", f"mlflow={uri}")
    assert (absent.exit_code, "no model 'nothing' in MLflow" in absent.output) == (2, True)


class TestFiles:
    """What MLflow gave is not believed."""

    def folder(self, registry: Registry, tmp_path: Path) -> Path:
        from shoal.models.mlflow import _write_files

        folder = tmp_path / FOLDER
        folder.mkdir()
        _write_files(registry, registry.get("digits"), folder)
        return folder

    def test_the_same_files_are_the_same_version(self, registry: Registry, tmp_path: Path) -> None:
        other = Registry(tmp_path / "other")
        version = _add_files(other, "digits", self.folder(registry, tmp_path), "note")
        assert version.digest == registry.get("digits").digest

    def test_other_weights_than_those_of_the_manifest_are_refused(self, registry: Registry, tmp_path: Path) -> None:
        folder, other = self.folder(registry, tmp_path), Registry(tmp_path / "other")
        save_file({"big": torch.zeros(300, 300)}, folder / WEIGHTS)
        with pytest.raises(RegistryError, match=r"are not those of its shoal.json; nothing was added"):
            _add_files(other, "digits", folder, "note")
        assert other.list() == []

    def test_a_file_outside_the_folder_is_not_read(self, registry: Registry, tmp_path: Path) -> None:
        folder = self.folder(registry, tmp_path)
        text = (folder / MANIFEST).read_text().replace("notes.txt", "../notes.txt")
        (folder / MANIFEST).write_text(text)
        with pytest.raises(UsageError, match="is not an id"):
            _add_files(Registry(tmp_path / "other"), "digits", folder, "note")

    def test_pickles_are_not_read(self, registry: Registry, tmp_path: Path) -> None:
        (tmp_path / "pickled" / "data").mkdir(parents=True)
        (tmp_path / "pickled" / "data" / "model.pth").write_bytes(b"")
        with pytest.raises(UsageError, match=r"but model.pth; what may hold code is not read"):
            _add_files(registry, "digits", tmp_path / "pickled", "digits:1 of MLflow")


def test_which_places_are_mlflow() -> None:
    assert [is_mlflow(place) for place in ("mlflow", "mlflow=http://x", "mlflow/dir", "ssh://mlflow/x")] == [
        True,
        True,
        False,
        False,
    ]
