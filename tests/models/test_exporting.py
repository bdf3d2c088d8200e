"""Exports equal the original on samples, or are refused; programs run without the code they were made from."""

from pathlib import Path

import pytest
import torch
from torch import nn

from shoal.core.errors import UsageError
from shoal.models import Registry
from shoal.models.exporting import compare, export_version, load_module, quantize, random_inputs
from shoal.models.importing import import_file
from shoal.models.program import (
    PROGRAM,
    SAMPLES,
    check_program,
    pack_samples,
    run_onnx,
    take_samples,
    trace_onnx,
    unpack_samples,
)


class Recurrent(nn.Module):
    """The last output of an LSTM through a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 7, batch_first=True), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))


def cnn() -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)]
    return nn.Sequential(*layers)


def clear_inputs(module: nn.Module) -> torch.Tensor:
    """Inputs that the module decides by a wide margin, as a trained one would."""
    inputs = torch.cat([random_inputs("12") * scale for scale in (1, -1, 2, -2, 0.5)])
    with torch.no_grad():
        top = module.eval()(inputs).topk(2).values
    return inputs[(top[:, 0] - top[:, 1]).argsort(descending=True)[:16]]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Holds `mlp` with samples and program, and `bare` without."""
    registry = Registry(tmp_path_factory.mktemp("models"))
    module = mlp()
    inputs = clear_inputs(module)
    samples = take_samples(module, inputs)
    files = {SAMPLES: pack_samples(samples), PROGRAM: trace_onnx(module, [inputs])}
    registry.add("mlp", module.state_dict(), files=files)
    registry.add("bare", module.state_dict())
    return registry


@pytest.mark.parametrize(("make", "shape"), [(cnn, "1x8x8"), (Recurrent, "6x5")], ids=["CNN", "LSTM"])
def test_onnx_export_import_and_run_equal_the_original(tmp_path: Path, make: type[nn.Module], shape: str) -> None:
    registry, module = Registry(tmp_path / "models"), make()
    module.train()
    version = registry.add("net", module.state_dict())
    example = random_inputs(shape)
    done = export_version(registry, version, tmp_path / "net.onnx", "onnx", module=make(), example=example)
    assert done.error <= 1e-5
    imported = import_file(registry, tmp_path / "net.onnx", "net-onnx")
    assert imported.kind == "onnx"
    with torch.no_grad():
        wanted = module.eval()(example[:5])
    (given,) = run_onnx(registry.file(imported, PROGRAM), [example[:5]])  # another batch size than it was made with
    assert (given - wanted).abs().max() <= 1e-5


class TestExport:
    def test_the_stored_program_of_an_mlp_needs_no_module(self, registry: Registry, tmp_path: Path) -> None:
        done = export_version(registry, registry.get("mlp"), tmp_path / "m.onnx", "onnx")
        assert (done.samples, done.error <= 1e-5) == (16, True)
        imported = import_file(registry, tmp_path / "m.onnx", "mlp-onnx")
        with torch.no_grad():
            wanted = mlp().eval()(random_inputs("12")[:5])
        (given,) = run_onnx(registry.file(imported, PROGRAM), [random_inputs("12")[:5]])
        assert (given - wanted).abs().max() <= 1e-5

    def test_int8_is_smaller_and_near(self, registry: Registry, tmp_path: Path) -> None:
        version = registry.get("mlp")
        exact = export_version(registry, version, tmp_path / "m.onnx", "onnx")
        small = export_version(registry, version, tmp_path / "m8.onnx", "onnx-int8", tolerance=0.1)
        assert small.agreement == 1.0
        assert 0 < small.error <= 0.1
        assert small.bytes < exact.bytes
        check_program((tmp_path / "m8.onnx").read_bytes())

    def test_what_is_too_far_off_is_refused_and_not_written(self, registry: Registry, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"mlp:1 as onnx-int8 is off by .*; 1e-09 is allowed"):
            export_version(registry, registry.get("mlp"), tmp_path / "m.onnx", "onnx-int8", tolerance=1e-9)
        assert not (tmp_path / "m.onnx").exists()

    def test_int8_must_decide_like_the_original(
        self, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shoal.models.exporting.quantize", lambda data: data)
        monkeypatch.setattr("shoal.models.exporting.run_onnx", lambda data, inputs: [torch.zeros(16, 4)])
        with pytest.raises(UsageError, match=r"decides like the original in .* of its samples only"):
            export_version(registry, registry.get("mlp"), tmp_path / "m.onnx", "onnx-int8", tolerance=9.0)

    def test_pt2_equals_the_original(self, registry: Registry, tmp_path: Path) -> None:
        done = export_version(registry, registry.get("mlp"), tmp_path / "m.pt2", "pt2", module=mlp())
        assert done.error <= 1e-5
        assert (tmp_path / "m.pt2").stat().st_size == done.bytes

    def test_safetensors_is_the_weights(self, registry: Registry, tmp_path: Path) -> None:
        export_version(registry, registry.get("bare"), tmp_path / "m.safetensors", "safetensors")
        again = import_file(registry, tmp_path / "m.safetensors", "again")
        assert again.weights == registry.get("bare").weights

    @pytest.mark.parametrize(
        ("ref", "format_", "message"),
        [
            ("bare", "onnx", "bare:1 has no samples to check with"),
            ("mlp", "pt2", "give --module FILE.py:FUNCTION"),
            ("mlp", "tf", "format 'tf' is unknown"),
        ],
    )
    def test_what_is_missing_is_said(
        self, registry: Registry, tmp_path: Path, ref: str, format_: str, message: str
    ) -> None:
        with pytest.raises(UsageError, match=message):
            export_version(registry, registry.get(ref), tmp_path / "out", format_)


class TestImport:
    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.onnx", b"no onnx", "no valid ONNX file"),
            ("a.safetensors", b"nothing", "no safetensors file"),
            ("a.pt", b"", "may hold code"),
            ("a.pt2", b"", "holds pickles"),
            ("a.txt", b"", "neither"),
        ],
    )
    def test_what_is_not_a_model_is_refused(
        self, registry: Registry, tmp_path: Path, name: str, content: bytes, message: str
    ) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=message):
            import_file(registry, tmp_path / name, "bad")
        assert registry.find("bad") is None

    def test_weights_in_other_files_are_refused(self, registry: Registry) -> None:
        import onnx

        model = onnx.load_model_from_string(registry.file(registry.get("mlp"), PROGRAM))
        model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
        with pytest.raises(UsageError, match="keeps weights in other files"):
            check_program(model.SerializeToString())


def test_samples_come_back(registry: Registry) -> None:
    inputs, outputs = unpack_samples(registry.file(registry.get("mlp"), SAMPLES))
    assert compare(run_onnx(quantize(registry.file(registry.get("mlp"), PROGRAM)), inputs), outputs)[0] < 0.1
    assert compare([torch.zeros(2)], [torch.zeros(3)]) == (float("inf"), 0.0)
    assert compare([torch.tensor([0.0, torch.nan])], [torch.zeros(2)]) == (float("inf"), 0.0)


def test_an_example_is_a_batch() -> None:
    with pytest.raises(UsageError, match="example must be a tensor"):
        take_samples(mlp(), torch.tensor(1.0))


@pytest.mark.parametrize("place", ["none.py:make", "nothing", "{here}:absent"])
def test_a_module_that_is_not_there_is_named(place: str) -> None:
    with pytest.raises(UsageError, match="--module"):
        load_module(place.format(here=__file__))
