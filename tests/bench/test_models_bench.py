"""`shoal bench models`: the figures of every model, the files and the command."""

import gzip
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import typer
from torch import nn
from torch.utils.data import TensorDataset

from shoal.bench.inference import inference_seconds
from shoal.bench.models import ModelFigures, measure
from shoal.bench.models_accuracy import top1
from shoal.bench.models_load import load_table
from shoal.bench.models_report import COLUMNS, cells, markdown, write_report
from shoal.bench.scatter import PLOTS, points
from shoal.cli.bench_models import models

MODELS = Path(__file__).parents[2] / "examples/models"
ROW = ModelFigures(
    model="one", data="synthetic", accuracy=0.5, parameters=2_000_000, flops=3_000_000,
    memory_1=1 << 20, memory_64=1 << 21, seconds_1=0.001, seconds_64=0.01, threads=1,
)  # fmt: skip


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Forty samples in MNIST's format: the label is the row that is white."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    labels = np.arange(40, dtype=np.uint8) % 10
    pictures = np.zeros((40, 28, 28), dtype=np.uint8)
    pictures[np.arange(40), labels] = 255
    for part in ("train", "t10k"):
        for name, values in ((f"{part}-images-idx3-ubyte.gz", pictures), (f"{part}-labels-idx1-ubyte.gz", labels)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">i4").tobytes()
            (folder / name).write_bytes(gzip.compress(head + values.tobytes()))
    return folder


@pytest.mark.parametrize("name", load_table(MODELS))
def test_every_model_is_measured(name: str) -> None:
    entry = load_table(MODELS)[name]
    row = measure(name, entry, epochs=0, limit=16, repeats=1)
    assert (row.accuracy is None) == (entry.kind != "classifier") == (row.density is None)
    assert row.data == ("none" if row.accuracy is None else "synthetic")
    assert row.flops > 0
    assert 4 * row.parameters < row.memory_1 < row.memory_64
    assert row.seconds_1 > 0 < row.seconds_64
    assert row.threads == torch.get_num_threads()


def test_accuracy_after_training_on_real_files(mnist: Path) -> None:
    row = measure("mlp", load_table(MODELS)["mlp"], folder=mnist, epochs=10, repeats=1)
    assert (row.data, row.accuracy) == ("real", 1.0)
    assert row.density == pytest.approx(100 / (row.parameters / 1e6))


def test_top1_counts_every_target() -> None:
    scores, targets = torch.eye(4)[[0, 1, 2, 3]], torch.tensor([0, 1, 0, 0])
    assert top1(nn.Identity(), TensorDataset(scores, targets)) == 0.5


def test_time_is_the_median_after_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0, 50, 0, 50, 0, 50, 0, 2, 0, 9, 0, 3])  # three slow ones first
    monkeypatch.setattr("shoal.bench.inference.time.perf_counter", lambda: next(ticks))
    assert inference_seconds(nn.Identity(), [torch.zeros(1)], repeats=3) == 3


def test_markdown() -> None:
    head, line, row = markdown([ROW], "a note").splitlines()[:3]
    assert head.count("|") == line.count("|") == row.count("|") == len(COLUMNS) + 1
    assert cells(ROW) == ["one", "synthetic", "50.00", "2.000", "3.000", "1.00", "2.00", "1.00", "10.00", "25"]


def test_three_plots_and_what_has_no_accuracy(tmp_path: Path) -> None:
    rows = [ROW, msgspec.structs.replace(ROW, model="gan", accuracy=None)]
    files = write_report(tmp_path / "out", rows, epochs=1, limit=None)
    assert [path.name for path in files[:2]] == ["models.md", "models.json"]
    assert [path.stem for path in files[2:]] == list(PLOTS)
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in files[2:])
    assert [point[0] for point in points(rows, *PLOTS["accuracy-flops"])] == ["one"]
    assert [point[0] for point in points(rows, *PLOTS["time-flops"])] == ["one", "gan"]


def run(tmp_path: Path, **options: object) -> None:
    models(
        **{"names": None, "data": None, "epochs": 1, "limit": 32, "out": tmp_path / "out", "table": MODELS} | options
    )


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are drawn in the test above."""
    monkeypatch.setattr("shoal.bench.models_report.draw_scatters", lambda *_: [])


@pytest.mark.usefixtures("no_plots")
def test_the_command_prints_json_and_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, names="mlp,gcn", json=True)
    printed = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in printed["models"]] == ["mlp", "gcn"]
    assert {"accuracy", "density", "flops", "seconds_64", "threads"} <= printed["models"][0].keys()
    assert json.loads((tmp_path / "out/models.json").read_text()) == printed


@pytest.mark.usefixtures("no_plots")
def test_the_command_draws_within_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, names="mlp", epochs=0)
    lines = capsys.readouterr().out.splitlines()
    assert all(column in lines[0] for column in COLUMNS)
    assert all(len(line) <= 80 for line in lines[:3])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": Path("nowhere")}, "--from DIR"),
        ({"names": "vgg"}, "no model 'vgg'"),
        ({"names": "mlp", "data": Path("nowhere")}, "it should hold t10k-images"),
    ],
)
def test_the_command_refuses(tmp_path: Path, options: dict, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stop:
        run(tmp_path, **options)
    assert stop.value.exit_code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
