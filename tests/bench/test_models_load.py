"""Finding the table: by path, with one-line errors, and nothing left on the import path."""

import sys
from pathlib import Path

import pytest

from shoal.bench.models_load import choose, load_table, real_data
from shoal.core.errors import UsageError

MODELS = Path(__file__).parents[2] / "examples/models"


def test_loads_once_and_leaves_the_import_path_alone() -> None:
    before = list(sys.path)
    table = load_table(MODELS)
    assert {"mlp", "alexnet", "googlenet", "resnet18", "resnet50", "densenet", "gan"} <= set(table)
    assert load_table(MODELS) is table
    assert sys.path == before


def test_its_files_may_import_each_other_and_their_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_models.py").write_text("ANSWER = 42")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "part.py").write_text("from neighbour_of_models import ANSWER")
    (folder / "__init__.py").write_text("from .part import ANSWER\nTABLE = {'answer': ANSWER}")
    assert load_table(folder) == {"answer": 42}


@pytest.mark.parametrize(("text", "said"), [(None, "--from DIR"), ("TABLES = {}", "no TABLE")])
def test_refuses_a_folder_without_a_table(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "__init__.py").write_text(text)
    with pytest.raises(UsageError, match=said):
        load_table(tmp_path)


def test_a_table_that_fails_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        load_table(tmp_path)
    (tmp_path / "__init__.py").write_text("TABLE = {}  # mended")
    assert load_table(tmp_path) == {}


def test_choose() -> None:
    table = load_table(MODELS)
    assert list(choose(table, "gcn, mlp")) == ["gcn", "mlp"]
    assert choose(table, None) is table
    with pytest.raises(UsageError, match=r"no model 'vgg'; there are mlp, "):
        choose(table, "mlp,vgg")


def test_real_data_needs_every_file(tmp_path: Path) -> None:
    table = load_table(MODELS)
    assert real_data(table["transformer"], tmp_path) is None
    (tmp_path / "tinyshakespeare.txt").write_text("to be")
    assert real_data(table["transformer"], tmp_path) == tmp_path
    assert real_data(table["mlp"], tmp_path) is None
    assert real_data(table["gcn"], tmp_path) is None
    assert real_data(table["mlp"], None) is None
