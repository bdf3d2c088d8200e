"""Models as ONNX programs: made from a module, run by ONNX Runtime, checked against the module on samples.

ONNX is what a registry stores of a program, because it is data: a `.pt2` file of torch.export holds pickles, so
Shoal reads only those that the user calls their own, and turns them into ONNX. Samples are inputs and the outputs of
the module for them.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from shoal.core.errors import UsageError
from shoal.models.errors import RegistryError

PROGRAM = "model.onnx"
SAMPLES = "samples.safetensors"
MOST = 64
"""Samples that are stored at most."""
LARGEST = 1 << 30
"""Bytes of an ONNX file at most."""
INSTALL = "pip install 'shoal[onnx]'"

Samples = tuple[list[Tensor], list[Tensor]]
"""Inputs, and the outputs the model gave for them."""


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside; every submodule is as it was afterwards."""
    modes = [(each, each.training) for each in module.modules()]
    try:
        module.eval()
        with torch.no_grad():
            yield
    finally:
        for each, mode in modes:
            each.training = mode


def take_samples(module: nn.Module, example: Any) -> Samples:
    """Inputs (a batch, or a tuple of them: the first dimension counts samples) with the module's outputs."""
    given = list(example) if isinstance(example, tuple | list) else [example]
    if not given or not all(isinstance(each, Tensor) and each.dim() and len(each) for each in given):
        raise UsageError(
            "example must be a tensor, or a tuple of them, with at least one sample in its first dimension"
        )
    # A prefix: samples are for checking and travel with every copy of the version.
    inputs = [each[:MOST].detach() for each in given]
    with evaluating(module):
        outputs = [leaf for leaf in pytree.tree_leaves(module(*inputs)) if isinstance(leaf, Tensor)]
    if not outputs:
        raise UsageError(f"{type(module).__name__} returned no tensor for the example; nothing can be checked")
    return [each.cpu() for each in inputs], [each.detach().cpu() for each in outputs]


def pack_samples(samples: Samples) -> bytes:
    named = {f"input.{number}": tensor.contiguous().clone() for number, tensor in enumerate(samples[0])}
    named |= {f"output.{number}": tensor.contiguous().clone() for number, tensor in enumerate(samples[1])}
    return save(named)


def unpack_samples(data: bytes) -> Samples:
    try:
        named = load(data)
    except (SafetensorError, ValueError) as error:
        raise RegistryError(f"{SAMPLES} is no safetensors file: {error}") from None
    lists = []
    for kind in ("input", "output"):
        count = sum(name.startswith(f"{kind}.") for name in named)
        lists.append([named[f"{kind}.{number}"] for number in range(count)])
    return lists[0], lists[1]


def trace_onnx(module: nn.Module, inputs: Sequence[Tensor]) -> bytes:
    """The module as an ONNX file, for any number of samples; for as many as given if it computes with their number."""
    # The exporter needs it, and its own error would not say how to get it.
    need("onnxscript")
    device = next((each.device for each in module.parameters()), torch.device("cpu"))
    # torch.export takes a dimension of 1 for a constant
    batch = tuple((each if len(each) > 1 else torch.cat([each, each])).to(device) for each in inputs)
    with evaluating(module), silenced():
        try:
            varying = tuple({0: torch.export.Dim.DYNAMIC} for _ in batch)
            program = torch.onnx.export(module, batch, dynamo=True, dynamic_shapes=varying, verbose=False)
        except Exception:  # noqa: BLE001  (of many kinds, and the fixed batch is the answer to all of them)
            try:
                program = torch.onnx.export(module, tuple(inputs), dynamo=True, verbose=False)
            except Exception as error:  # noqa: BLE001  (whatever torch cannot export)
                raise UsageError(f"{type(module).__name__} cannot be exported: {_first_line(error)}") from None
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def trace_pt2(module: nn.Module, inputs: Sequence[Tensor], path: str) -> list[Tensor]:
    """Write the module as a program of torch.export; returns what that program gives for `inputs`."""
    with evaluating(module), silenced():
        try:
            program = torch.export.export(module, tuple(inputs))
            torch.export.save(program, path)
            outputs = program.module()(*inputs)
        except Exception as error:  # noqa: BLE001  (whatever torch cannot export)
            raise UsageError(f"{type(module).__name__} cannot be exported: {_first_line(error)}") from None
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def read_pt2(path: Path) -> tuple[dict[str, Tensor], bytes, Samples]:
    """Weights, ONNX file and samples of a program of torch.export, which may run code while it is read."""
    need("onnxscript")
    with torch.no_grad(), silenced():
        try:
            program = torch.export.load(path)
        except Exception as error:  # noqa: BLE001  (whatever torch finds wrong with the file)
            raise UsageError(f"{path.name} is no program of torch.export: {_first_line(error)}") from None
        arguments, named = program.example_inputs or ((), {})
        inputs = [each for each in arguments if isinstance(each, Tensor)]
        if named or not inputs or len(inputs) != len(arguments):
            raise UsageError(f"{path.name} takes other things than tensors; export it to ONNX where it was made")
        outputs = [leaf for leaf in pytree.tree_leaves(program.module()(*inputs)) if isinstance(leaf, Tensor)]
        try:
            made = torch.onnx.export(program, (), dynamo=True, verbose=False)
        except Exception as error:  # noqa: BLE001  (whatever torch cannot export)
            raise UsageError(f"{path.name} cannot be turned into ONNX: {_first_line(error)}") from None
    assert made is not None
    weights = {name: tensor.detach() for name, tensor in program.state_dict.items()}
    return weights, bytes(made.model_proto.SerializeToString()), (inputs, [each.detach() for each in outputs])


def run_onnx(data: bytes, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What ONNX Runtime computes, on one thread; UsageError if it is no program, or not for these inputs."""
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        if len(names) != len(inputs):
            raise UsageError(f"the program takes {len(names)} inputs; {len(inputs)} are given")
        outputs = session.run(None, {name: each.numpy() for name, each in zip(names, inputs, strict=True)})
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001  (ONNX Runtime has an exception class for each failure)
        raise UsageError(f"ONNX Runtime refuses it: {_first_line(error)}") from None
    return [torch.as_tensor(each) for each in outputs]


def check_program(data: bytes) -> None:
    """Refuse what is no ONNX file, is too large, or refers to files beside it."""
    onnx = need("onnx")
    if len(data) > LARGEST:
        raise UsageError(f"an ONNX file of {len(data)} bytes; {LARGEST} is the most")
    try:
        model = onnx.load_model_from_string(data)
        if any(each.data_location == onnx.TensorProto.EXTERNAL for each in model.graph.initializer):
            raise UsageError("it keeps weights in other files; save it with its weights inside")
        onnx.checker.check_model(model)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001  (whatever a hostile file makes the parser raise)
        raise UsageError(f"it is no valid ONNX file: {_first_line(error)}") from None


def need(package: str) -> Any:
    """An optional library; UsageError says how to get it."""
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError:
        raise UsageError(f"this needs {package}, which is not installed: {INSTALL}") from None


@contextmanager
def silenced() -> Iterator[None]:
    """Exporters talk of libraries that are missing and of their own deprecations: nothing a user can act on."""
    root = logging.getLogger()
    handlers, disabled = list(root.handlers), root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers  # logging.warning() adds one where there was none


def _first_line(error: BaseException) -> str:
    cause = error.__cause__ or error  # exporters wrap what is wrong in advice
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0][:200]
