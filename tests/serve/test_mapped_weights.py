"""Processes share the weights of an ONNX program: made once, mapped by all, the same answers."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from served import onnx_file

from shoal.serve.errors import LoadRefused
from shoal.serve.mapped import MappedPrograms, is_aligned
from shoal.serve.programs import OnnxLoader

ROWS = {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}


def test_the_weights_are_mapped_from_one_file_and_answers_are_the_same(tmp_path: Path) -> None:
    file = onnx_file(tmp_path / "m.onnx", weights=1 << 20)
    size = file.stat().st_size
    alone = OnnxLoader(file, size).load().predict(ROWS)["y"]
    (shared := tmp_path / "shared").mkdir()
    mapped = OnnxLoader(file, size, mapped=MappedPrograms(shared)).load()
    assert np.array_equal(mapped.predict(ROWS)["y"], alone)
    weights = next(shared.rglob("weights.bin"))
    assert weights.stat().st_size >= 4 << 20
    assert str(weights) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("width", [729, 64])
def test_packed_weights_are_mapped_only_where_kernels_can_read_them(tmp_path: Path, width: int) -> None:
    """Three columns of 729 end in the middle of a cache line: ONNX Runtime packs behind them, and then crashes."""
    value, weight = helper.make_tensor_value_info, np.ones((width, 3), dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "weight"], ["y"])],
        "narrow",
        [value("x", TensorProto.FLOAT, ["N", width])],
        [value("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, str(file := tmp_path / "m.onnx"))
    (shared := tmp_path / "shared").mkdir()
    assert is_aligned(MappedPrograms(shared).find(file, onnxruntime))  # else the next line ends this process
    mapped = OnnxLoader(file, 1, mapped=MappedPrograms(shared)).load()
    assert mapped.predict({"x": np.ones((2, width), dtype=np.float32)})["y"].tolist() == [[width] * 3] * 2


def test_the_files_are_made_once_for_equal_programs(tmp_path: Path) -> None:
    first, second = (onnx_file(tmp_path / name / "m.onnx", weights=1 << 12) for name in ("a", "b"))
    other = onnx_file(tmp_path / "c.onnx", factor=5.0, weights=1 << 12)
    (shared := tmp_path / "shared").mkdir()
    for file in (first, second, other):
        OnnxLoader(file, 1, mapped=MappedPrograms(shared)).load()
    assert len(list(shared.rglob("weights.bin"))) == 2


def test_a_damaged_program_leaves_nothing(tmp_path: Path) -> None:
    (file := tmp_path / "m.onnx").write_bytes(b"\x08\x09no program")
    (shared := tmp_path / "shared").mkdir()
    with pytest.raises(LoadRefused):
        OnnxLoader(file, 1, mapped=MappedPrograms(shared)).load()
    assert [path.name for path in shared.iterdir() if path.is_dir()] == []
