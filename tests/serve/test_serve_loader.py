"""Loaders say how much memory a servable will take, and give it back."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from served import onnx_file, x

from shoal.core.errors import UsageError
from shoal.serve.errors import LoadRefused
from shoal.serve.loader import ObjectLoader, ServableLoader, TableLoader, release_memory
from shoal.serve.programs import OnnxLoader, ProgramLoader

BIG = 48 << 20


class Rows:
    """Takes `BIG` bytes of memory."""

    def __init__(self) -> None:
        self.kept = np.ones(BIG // 4, dtype=np.float32)

    def predict(self, numbers: np.ndarray) -> np.ndarray:
        return self.kept[: len(numbers)]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def in_a_child(work: Callable[[], tuple[int, int, int]]) -> tuple[int, int, int]:
    """In a process of its own, where nothing else takes and frees memory meanwhile."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(writing, msgspec.json.encode(work()))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        found = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return msgspec.json.decode(found, type=tuple[int, int, int])


def measured(loader: ServableLoader, first: ServableLoader) -> tuple[int, int, int]:
    """Estimate, what loading took and what unloading gave back; `first` warms the libraries up."""
    for each in (first, loader):
        estimate, before = each.estimate(), resident()
        servable = each.load()
        servable.predict(x([1.0, 2.0]))
        loaded = resident()
        del servable
        each.unload()
        release_memory()
    return estimate, loaded - before, loaded - resident()


@pytest.mark.parametrize("kind", ["onnx", "object"])
def test_an_estimate_before_loading_and_most_of_it_back_after_unloading(tmp_path: Path, kind: str) -> None:
    small, big = onnx_file(tmp_path / "small.onnx"), onnx_file(tmp_path / "big.onnx", weights=BIG // 4)
    pairs: dict[str, tuple[ServableLoader, ServableLoader]] = {
        "onnx": (OnnxLoader(big, big.stat().st_size), OnnxLoader(small, small.stat().st_size)),
        "object": (ObjectLoader(Rows, BIG), ObjectLoader(lambda: np.random.default_rng(0) and Rows(), 0)),
    }
    estimate, took, freed = in_a_child(lambda: measured(*pairs[kind]))
    assert estimate >= BIG
    assert took >= 0.9 * BIG
    assert freed >= 0.9 * estimate


def test_an_onnx_program_from_bytes_answers(tmp_path: Path) -> None:
    data = onnx_file(tmp_path / "m.onnx", 3.0).read_bytes()
    servable = OnnxLoader(lambda: data, len(data)).load()
    assert servable.predict(x([1.0, 2.0]))["y"].tolist() == [[3.0, 6.0]]
    assert [(each.name, each.datatype, each.shape) for each in servable.inputs] == [("x", "FP32", (-1, 2))]


def test_what_is_no_onnx_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x00\x01garbage")
    with pytest.raises(LoadRefused, match=r"m\.onnx is no ONNX file"):
        OnnxLoader(tmp_path / "m.onnx", 9).load()


def test_a_program_that_names_other_files_is_refused(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(str(onnx_file(tmp_path / "whole.onnx", weights=4096)))
    onnx.save_model(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="weights", size_threshold=0)
    with pytest.raises(LoadRefused, match="keeps weights in other files"):
        OnnxLoader(tmp_path / "m.onnx", 100).load()


def test_an_onnx_file_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(LoadRefused, match="is the most"):
        OnnxLoader(tmp_path / "nowhere.onnx", 1 << 40).load()


def test_a_table_from_json(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"a": [1, 2.5]}')
    servable = TableLoader(tmp_path / "t.json").load()
    assert servable.predict({"key": np.array([b"a"], dtype=object)})["value"].tolist() == [[1.0, 2.5]]
    (tmp_path / "t.json").write_text('{"a": ["x"]}')
    with pytest.raises(LoadRefused, match="is no lookup table"):
        TableLoader(tmp_path / "t.json").load()


def test_a_pt2_file_is_read_only_if_it_is_trusted(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "m.pt2"
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    with pytest.raises(UsageError, match="--trust-pt2"):
        ProgramLoader(path, trusted=False).load()
    servable = ProgramLoader(path, trusted=True).load()
    assert [(each.datatype, each.shape) for each in servable.inputs] == [("FP32", (-1, 3))]
    name = servable.inputs[0].name
    found = servable.predict({name: np.array([[-1.0, 0.0, 2.0]], dtype=np.float32)})
    assert found["output"].tolist() == [[0.0, 0.0, 2.0]]
