"""A version as a file for other tools, checked against the original on the samples stored with it.

    safetensors   the weights alone
    onnx          the stored program, or one made from the user's module
    onnx-int8     weights in eight bits (ONNX Runtime, dynamic quantisation): smaller and faster, and a little off
    pt2           torch.export, made from the user's module

A file whose outputs are further off than its tolerance is refused, and nothing is written.
"""

import importlib.util
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from shoal.core.durable import write_file
from shoal.core.errors import UsageError
from shoal.models.loading import fill
from shoal.models.program import (
    PROGRAM,
    SAMPLES,
    Samples,
    need,
    run_onnx,
    silenced,
    take_samples,
    trace_onnx,
    trace_pt2,
    unpack_samples,
)
from shoal.models.registry import Registry
from shoal.models.version import ModelVersion

TOLERANCES = {"onnx": 1e-5, "pt2": 1e-5, "onnx-int8": 0.05}
"""Largest error of an output, relative to the largest of all outputs (or to 1)."""
AGREEMENT = 0.98
"""Of int8: in how many samples at least the largest output must be the same one."""
FORMATS = ("safetensors", *TOLERANCES)


class ExportedModel(msgspec.Struct, frozen=True):
    """A file that was written."""

    path: str
    format: str
    bytes: int
    error: float = 0.0
    """Largest relative error on the samples."""
    agreement: float = 1.0
    """In how many samples the largest output is the same one."""
    samples: int = 0


def export_version(
    registry: Registry,
    version: ModelVersion,
    path: Path,
    format: str,  # noqa: A002  (the word of the command line)
    *,
    module: nn.Module | None = None,
    example: Tensor | None = None,
    tolerance: float | None = None,
) -> ExportedModel:
    """Write `path`; UsageError if the format needs something that is missing, or the check fails."""
    if format not in FORMATS:
        raise UsageError(f"format {format!r} is unknown; take one of {', '.join(FORMATS)}")
    if module is not None:
        fill(module, registry.tensors(version), version.ref)
    if format == "safetensors":
        return _write(path, format, _weights(registry, version))
    samples = _samples(registry, version, module, example)
    limit = TOLERANCES[format] if tolerance is None else tolerance
    if format == "pt2":
        return _export_pt2(version, path, module, samples, limit)
    program = _program(registry, version, module, samples)
    if format == "onnx-int8":
        program = quantize(program)
    error, agreement = compare(run_onnx(program, samples[0]), samples[1])
    _guard(version, format, error, agreement, limit)
    return _write(path, format, program, error, agreement, len(samples[0][0]))


def _export_pt2(
    version: ModelVersion, path: Path, module: nn.Module | None, samples: Samples, limit: float
) -> ExportedModel:
    if module is None:
        raise UsageError(f"pt2 is made from a module; give --module FILE.py:FUNCTION that returns it for {version.ref}")
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "program.pt2")
        error, agreement = compare(trace_pt2(module, samples[0], target), samples[1])
        _guard(version, "pt2", error, agreement, limit)
        return _write(path, "pt2", Path(target).read_bytes(), error, agreement, len(samples[0][0]))


def _guard(version: ModelVersion, format: str, error: float, agreement: float, limit: float) -> None:  # noqa: A002
    if not error <= limit:
        raise UsageError(
            f"{version.ref} as {format} is off by {error:.2g} of its largest output; {limit:.2g} is allowed"
        )
    if format == "onnx-int8" and agreement < AGREEMENT:
        raise UsageError(
            f"{version.ref} as {format} decides like the original in {agreement:.1%} of its samples only; "
            f"{AGREEMENT:.0%} are wanted, so export it as onnx"
        )


def compare(outputs: Sequence[Tensor], wanted: Sequence[Tensor]) -> tuple[float, float]:
    """Largest error relative to the largest output, and the share of samples with the same largest element."""
    if [each.shape for each in outputs] != [each.shape for each in wanted]:
        return float("inf"), 0.0
    error = 0.0
    for given, want in zip(outputs, wanted, strict=True):
        # At least 1, because small outputs would make rounding look like a large relative error.
        scale = max(1.0, float(want.abs().double().max())) if want.numel() else 1.0
        worst = float((given.double() - want.double()).abs().max()) if want.numel() else 0.0
        if not math.isfinite(worst):  # `max` would pass over NaN
            return float("inf"), 0.0
        error = max(error, worst / scale)
    first, expected = outputs[0], wanted[0]
    if expected.dim() < 2 or expected.shape[-1] < 2 or not expected.numel():
        return error, 1.0
    return error, float((first.argmax(-1) == expected.argmax(-1)).double().mean())


def quantize(program: bytes) -> bytes:
    """The same program with weights of matrix products in eight bits."""
    need("onnxruntime")
    onnx = need("onnx")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load_model_from_string(program)
    del model.graph.value_info[:]  # shapes inferred by the exporter contradict those of the quantised graph
    with tempfile.TemporaryDirectory() as folder, silenced():
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(model.SerializeToString())
        quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True)
        return target.read_bytes()


def _samples(registry: Registry, version: ModelVersion, module: nn.Module | None, example: Tensor | None) -> Samples:
    stored = {entry.name for entry in registry.manifest(version).files}
    if SAMPLES in stored:
        return unpack_samples(registry.file(version, SAMPLES))
    if module is None or example is None:
        raise UsageError(
            f"{version.ref} has no samples to check with; give --module FILE.py:FUNCTION and --shape, or register it "
            "with run.register(NAME, example=inputs)"
        )
    return take_samples(module, example)


def _program(registry: Registry, version: ModelVersion, module: nn.Module | None, samples: Samples) -> bytes:
    if module is not None:
        return trace_onnx(module, samples[0])
    if any(entry.name == PROGRAM for entry in registry.manifest(version).files):
        return registry.file(version, PROGRAM)
    raise UsageError(f"{version.ref} holds no program; give --module FILE.py:FUNCTION that returns its module")


def _weights(registry: Registry, version: ModelVersion) -> bytes:
    from safetensors.torch import save

    tensors = registry.tensors(version)
    if not tensors:
        raise UsageError(f"{version.ref} is an ONNX program without weights of its own; export it as onnx")
    return save({name: tensor.contiguous().clone() for name, tensor in tensors.items()})


def _write(
    path: Path, format: str, data: bytes, error: float = 0.0, agreement: float = 1.0, samples: int = 0  # noqa: A002
) -> ExportedModel:  # fmt: skip
    try:
        write_file(path, data)
    except OSError as problem:
        raise UsageError(f"cannot write {str(path)!r}: {problem.strerror}; give a file in a folder") from None
    return ExportedModel(str(path), format, len(data), error, agreement, samples)


def load_module(place: str) -> nn.Module:
    """What FUNCTION of FILE.py returns: the user's own code, named by the user."""
    file, colon, function = place.rpartition(":")
    if not colon or not Path(file).is_file():
        raise UsageError(f"--module {place!r} is not FILE.py:FUNCTION with a file that exists")
    spec = importlib.util.spec_from_file_location("shoal_user_module", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--module {place!r}: {file!r} is no Python file")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    make: Callable[[], object] | None = getattr(loaded, function, None)
    module = make() if callable(make) else None
    if not isinstance(module, nn.Module):
        raise UsageError(f"--module {place!r}: {function!r} must be a function (or class) that gives a torch module")
    return module


def random_inputs(shape: str) -> Tensor:
    """A batch of sixteen seeded random samples of a shape such as `1x28x28`."""
    words = shape.lower().replace(",", "x").split("x")
    if not all(word.isascii() and word.isdecimal() and 0 < int(word) <= 1 << 16 for word in words):
        raise UsageError(f"--shape {shape!r} is not the shape of a sample; write 784 or 1x28x28")
    return torch.randn(16, *map(int, words), generator=torch.Generator().manual_seed(0))
