"""Programs of other tools become versions that answer as they did: torch.export, and converters to ONNX."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_exporting import Recurrent, mlp
from torch import nn
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.core.errors import UsageError
from shoal.models import Registry
from shoal.models.importing import import_file
from shoal.models.program import PROGRAM, SAMPLES, run_onnx, trace_pt2, unpack_samples


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models")


def save_pt2(module: nn.Module, example: torch.Tensor, path: Path) -> torch.Tensor:
    (outputs,) = trace_pt2(module, [example], str(path))
    return outputs.detach()


@pytest.mark.parametrize(("module", "shape"), [(mlp(), (4, 12)), (Recurrent(), (4, 6, 5))], ids=["mlp", "lstm"])
def test_a_pt2_file_of_ones_own_answers_as_before(
    registry: Registry, tmp_path: Path, module: nn.Module, shape: tuple[int, ...]
) -> None:
    example = torch.randn(shape)
    wanted = save_pt2(module, example, tmp_path / "net.pt2")
    version = import_file(registry, tmp_path / "net.pt2", "net", trust_pt2=True)
    (found,) = run_onnx(registry.file(version, PROGRAM), [example])
    assert torch.allclose(found, wanted, atol=1e-5)
    weights = registry.tensors(version)
    assert all(torch.equal(weights[name], tensor) for name, tensor in module.state_dict().items())
    assert torch.equal(unpack_samples(registry.file(version, SAMPLES))[0][0], example)


def test_a_pt2_file_is_read_only_if_it_is_called_ones_own(registry: Registry, tmp_path: Path) -> None:
    save_pt2(mlp(), torch.randn(2, 12), tmp_path / "net.pt2")
    words = ["models", "import", str(tmp_path / "net.pt2"), "net", "--models", str(registry.root)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "if it is your own, give --trust-pt2" in done.output
    done = CliRunner().invoke(app, [*words, "--trust-pt2"])
    assert done.exit_code == 0, done.output
    assert "is net:1" in done.output


def test_what_is_no_program_is_refused(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(b"no zip")
    with pytest.raises(UsageError, match="is no program"):
        import_file(registry, tmp_path / "net.pt2", "net", trust_pt2=True)
    assert not registry.list()


def test_a_model_of_scikit_learn_comes_in_through_its_converter(registry: Registry, tmp_path: Path) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.ensemble import RandomForestClassifier

    x = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
    forest = RandomForestClassifier(8, random_state=0).fit(x, x[:, 0] + x[:, 1] > 0)
    converted = skl2onnx.to_onnx(forest, x[:1], options={"zipmap": False})
    (tmp_path / "forest.onnx").write_bytes(converted.SerializeToString())
    version = import_file(registry, tmp_path / "forest.onnx", "forest")
    labels, shares = run_onnx(registry.file(version, PROGRAM), [torch.from_numpy(x)])
    assert np.array_equal(labels.numpy().astype(bool), forest.predict(x))
    assert np.allclose(shares.numpy(), forest.predict_proba(x), atol=1e-5)
