"""The examples do what their first lines promise, with two workers."""

import os
import shutil
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("SHOAL_DATA", ROOT.parent / "shared" / "data"))


def data(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {path}: set SHOAL_DATA to a folder that holds {name}")
    return path


@pytest.fixture(autouse=True)
def _room(tmp_path):
    yield
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)


def test_digits(tmp_path):
    done = forked.shoal(tmp_path, "run", "--workers", "2", "--json", str(ROOT / "examples/digits.py"))
    assert done.code == 0, done.err
    assert done.json["metrics"]["accuracy"] >= 0.95


def test_mnist_learns(tmp_path):
    """The first tenth of the samples; `make soak` trains on all of them."""
    words = ["--data", str(data("mnist")), "--epochs", "1", "--limit", "6000"]
    done = forked.shoal(tmp_path, "run", "--workers", "2", "--json", str(ROOT / "examples/mnist.py"), *words)
    assert done.code == 0, done.err
    assert done.json["metrics"]["accuracy"] >= 0.85
    assert done.json["samples"] == 6000


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_mnist_reaches_985_in_two_epochs(tmp_path):
    script = str(ROOT / "examples/mnist.py")
    words = ["run", "--workers", "2", "--json", script, "--data", str(data("mnist")), "--epochs", "2"]
    done = forked.command(tmp_path, *words).wait(seconds=390)
    assert done.code == 0, done.err
    assert done.json["metrics"]["accuracy"] >= 0.985
    assert done.json["samples"] == 120_000


def test_mnist_without_data_says_where_it_looked(tmp_path):
    done = forked.shoal(tmp_path, "run", str(ROOT / "examples/mnist.py"), "--data", str(tmp_path / "nowhere"))
    assert done.code == 1
    assert "nowhere" in done.err


def test_shakespeare_learns(tmp_path):
    text = str(data("tinyshakespeare.txt"))
    small = ["--width", "32", "--depth", "1", "--context", "16", "--limit", "20", "--epochs", "2"]
    done = forked.shoal(
        tmp_path, "run", "--workers", "2", "--json", str(ROOT / "examples/shakespeare.py"), "--text", text, *small
    )
    assert done.code == 0, done.err
    assert done.json["metrics"]["loss"] < 4.0  # chance is log(65) = 4.17
