"""Files of other tools as versions: safetensors weights and ONNX programs. Files that may hold code are refused."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from shoal.core.errors import UsageError
from shoal.models.program import LARGEST, PROGRAM, check_program
from shoal.models.registry import Registry
from shoal.models.version import Lineage, ModelVersion


def import_file(registry: Registry, path: Path, name: str, note: str = "") -> ModelVersion:
    """Add a `.safetensors` or `.onnx` file as the next version of `name`."""
    if not path.is_file():
        raise UsageError(f"no file {str(path)!r}; give a .safetensors or .onnx file, or a checkpoint's folder")
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
        raise UsageError(f"{path.name} holds pickles, which may run code; export it to ONNX where it was made")
    raise UsageError(f"{path.name!r} is neither .safetensors nor .onnx")
