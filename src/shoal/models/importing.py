"""Files of other tools as versions: safetensors weights, ONNX programs, and `.pt2` programs of torch.export.

Files that may hold code are refused; a `.pt2` is read where the user says that it is their own.
"""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from shoal.core.errors import UsageError
from shoal.models.exporting import TOLERANCES, compare
from shoal.models.program import LARGEST, PROGRAM, SAMPLES, check_program, pack_samples, read_pt2, run_onnx
from shoal.models.registry import Registry
from shoal.models.version import Lineage, ModelVersion


def import_file(registry: Registry, path: Path, name: str, note: str = "", *, trust_pt2: bool = False) -> ModelVersion:
    """Add a `.safetensors`, `.onnx` or trusted `.pt2` file as the next version of `name`."""
    if not path.is_file():
        raise UsageError(f"no file {str(path)!r}; give a .safetensors, .onnx or .pt2 file, or a checkpoint's folder")
    note = note or f"imported from {path.name}"
    if path.suffix == ".safetensors":
        try:
            return registry.add(name, load_file(path), note=note)
        except (SafetensorError, ValueError) as error:
            raise UsageError(f"{path.name} is no safetensors file: {error}") from None
    if path.suffix == ".onnx":
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path.name} has {path.stat().st_size} bytes; {LARGEST} is the most")
        data = path.read_bytes()
        check_program(data)
        return registry.add(name, files={PROGRAM: data}, lineage=Lineage(), note=note)
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise UsageError(f"{path.name} may hold code; turn it into safetensors first: shoal import {path.name} OUT")
    if path.suffix == ".pt2":
        if not trust_pt2:
            raise UsageError(f"{path.name} holds pickles, which may run code; if it is your own, give --trust-pt2")
        return _import_pt2(registry, path, name, note)
    raise UsageError(f"{path.name!r} is neither .safetensors nor .onnx nor .pt2")


def _import_pt2(registry: Registry, path: Path, name: str, note: str) -> ModelVersion:
    """Keep the program as ONNX, with its weights and example; refused if ONNX Runtime computes something else."""
    weights, program, samples = read_pt2(path)
    check_program(program)
    # Only the ONNX form is kept, so it must compute what the original does.
    error, _ = compare(run_onnx(program, samples[0]), samples[1])
    if error > TOLERANCES["pt2"]:
        raise UsageError(f"{path.name} as ONNX is off by {error:.2g}, more than {TOLERANCES['pt2']}; nothing was added")
    return registry.add(name, weights, files={PROGRAM: program, SAMPLES: pack_samples(samples)}, note=note)
