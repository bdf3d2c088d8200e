"""Trained models as servables: ONNX programs by ONNX Runtime, torch modules and `.pt2` programs by torch.

ONNX is data and is loaded as it is. Reading a `.pt2` file may run code that stands in it (pickles, expressions that
are evaluated), so a user must say that the file is trusted. torch is imported only where a model needs it.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import UsageError
from shoal.serve.errors import LoadRefused
from shoal.serve.loader import release_memory
from shoal.serve.mapped import MappedPrograms
from shoal.serve.servable import Servable
from shoal.serve.tensors import DATATYPES, Tensors, TensorSpec

LARGEST = 1 << 30
"""Bytes of an ONNX file at most, as in the registry."""
INSTALL = "pip install 'shoal[serve]'"
_ONNX_TYPES = {
    "tensor(bool)": "BOOL",
    "tensor(string)": "BYTES",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    **{f"tensor({name.lower()})": name for name in DATATYPES if "INT" in name},
}


class OnnxServable:
    """A session of ONNX Runtime; safe to be asked by several threads."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.inputs = tuple(_spec(each) for each in session.get_inputs())
        self.outputs = tuple(_spec(each) for each in session.get_outputs())

    def predict(self, inputs: Tensors) -> Tensors:
        given = {name: _text(each) if each.dtype == object else each for name, each in inputs.items()}
        found = self._session.run(None, given)
        return {spec.name: _octets(each) for spec, each in zip(self.outputs, found, strict=True)}


def _spec(declared: Any) -> TensorSpec:
    datatype = _ONNX_TYPES.get(declared.type)
    if datatype is None:
        raise LoadRefused(f"{declared.name!r} is a {declared.type}, which the protocol has no type for")
    shape = tuple(length if isinstance(length, int) else -1 for length in declared.shape)
    return TensorSpec(declared.name, datatype, shape)


def _text(array: Any) -> Any:
    return np.array([each.decode(errors="replace") for each in array.ravel()], dtype=object).reshape(array.shape)


def _octets(array: Any) -> Any:
    if array.dtype != object:
        return array
    return np.array([str(each).encode() for each in array.ravel()], dtype=object).reshape(array.shape)


class OnnxLoader:
    """An ONNX program of `size` bytes, from a file, or from a function that reads it from a registry."""

    def __init__(
        self,
        program: Path | Callable[[], bytes],
        size: int,
        threads: int = 1,
        mapped: MappedPrograms | None = None,
    ) -> None:
        """With `mapped`, processes share the weights."""
        self._program, self._size, self._threads, self._mapped = program, size, threads, mapped

    def estimate(self) -> int:
        """Its weights are all but a few kilobytes of the file, and ONNX Runtime keeps them once."""
        return self._size

    def load(self) -> Servable:
        with self.program_file() as path:
            return OnnxServable(self._session(path))

    @contextmanager
    def program_file(self) -> Iterator[Path]:
        """Its own, or one of the block: given bytes, ONNX Runtime keeps them beside the weights it makes of them."""
        if self._size > LARGEST:
            raise LoadRefused(f"an ONNX file of {self._size} bytes; {LARGEST} is the most")
        if isinstance(self._program, Path):
            yield self._program
            return
        with tempfile.NamedTemporaryFile(prefix="shoal-", suffix=".onnx") as file:
            file.write(self._program())
            file.flush()
            yield Path(file.name)

    def _session(self, path: Path) -> Any:
        runtime = need("onnxruntime")
        _check_self_contained(path)
        options = runtime.SessionOptions()
        # Batches run beside each other, so one batch keeps to the threads that it was given.
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.log_severity_level = 4  # what matters is raised
        try:
            path = path if self._mapped is None else self._mapped.find(path, runtime)
            return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001  (ONNX Runtime has an exception class for each failure)
            raise LoadRefused(f"ONNX Runtime refuses {path.name}: {first_line(error)}") from None

    def unload(self) -> None:
        release_memory()


def _check_self_contained(path: Path) -> None:
    """Refuse a program that names other files: it could read any file that this user can."""
    onnx = need("onnx")
    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except Exception as error:  # noqa: BLE001  (whatever a hostile file makes the parser raise)
        raise LoadRefused(f"{path.name} is no ONNX file: {first_line(error)}") from None
    if any(each.data_location == onnx.TensorProto.EXTERNAL for each in model.graph.initializer):
        raise LoadRefused(f"{path.name} keeps weights in other files; save it with its weights inside")


class TorchServable:
    """A torch module or program that takes tensors in order; outputs are named in order too."""

    def __init__(self, module: Callable[..., Any], inputs: tuple[TensorSpec, ...]) -> None:
        self._module, self.inputs, self.outputs = module, inputs, ()

    def predict(self, inputs: Tensors) -> Tensors:
        import torch
        from torch.utils import _pytree as pytree

        # Inputs may be views of a body, which are read-only, and torch wants memory that it could write.
        given = [torch.from_numpy(np.require(each, requirements="W")) for each in inputs.values()]
        with torch.inference_mode():
            leaves = pytree.tree_leaves(self._module(*given))
        found = [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return {f"output_{at}" if at else "output": each for at, each in enumerate(found)}


class ModuleLoader:
    """Weights of a registry in the module that a function of the user makes; any batch size."""

    def __init__(self, make: Callable[[], Any], fill: Callable[[Any], None], size: int) -> None:
        self._make, self._fill, self._size = make, fill, size

    def estimate(self) -> int:
        return self._size

    def load(self) -> Servable:
        module = self._make()
        self._fill(module)
        module.eval()
        # A module does not declare its inputs, so requests for it are not batched.
        return TorchServable(module, ())

    def unload(self) -> None:
        release_memory()


class ProgramLoader:
    """A trusted `.pt2` file of torch.export; its shapes are those it was exported with."""

    def __init__(self, path: Path, *, trusted: bool) -> None:
        self._path, self._trusted = path, trusted

    def estimate(self) -> int:
        return self._path.stat().st_size

    def load(self) -> Servable:
        if not self._trusted:
            raise UsageError(f"{self._path.name} may run code when it is read; if it is your own, give --trust-pt2")
        torch = need("torch")
        try:
            program = torch.export.load(str(self._path))
            specs = tuple(_torch_spec(each) for each in program.graph.nodes if each.name in _user_inputs(program))
        except Exception as error:  # noqa: BLE001  (whatever torch cannot read)
            raise LoadRefused(f"torch cannot read {self._path.name}: {first_line(error)}") from None
        return TorchServable(program.module(), specs)

    def unload(self) -> None:
        release_memory()


def _user_inputs(program: Any) -> tuple[str, ...]:
    return tuple(program.graph_signature.user_inputs)


def _torch_spec(node: Any) -> TensorSpec:
    value = node.meta["val"]
    dtype = np.dtype(str(value.dtype).removeprefix("torch."))
    name = next(name for name, known in DATATYPES.items() if known == dtype)
    shape = tuple(length if isinstance(length, int) else -1 for length in value.shape)
    return TensorSpec(node.name, name, shape)


def need(package: str) -> Any:
    """A library of the extra; UsageError says how to get it."""
    try:
        return import_module(package)
    except ImportError:
        raise UsageError(f"this needs {package}, which is not installed: {INSTALL}") from None


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
