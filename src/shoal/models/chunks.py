"""Tensors as chunks: safetensors files of bounded size, so that what did not change is stored once.

Consecutive small tensors share a chunk, because a file and an fsync for each would cost more than they save. A
large tensor has its chunks for itself, cut at `LARGEST`, under a neutral name: tied and renamed weights are equal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from shoal.core.disk import Buffer
from shoal.core.errors import UsageError
from shoal.models.errors import RegistryError
from shoal.models.version import OWN_CHUNK, TensorEntry

SMALL = 256 << 10
"""Bytes: smaller tensors are grouped until a group has as many."""
LARGEST = 16 << 20
"""Bytes of a large tensor in one chunk."""
HEADER = 1 << 20
"""Bytes that a chunk may have beside its tensors."""
MANY = 4096
"""Tensors in a group at most, so that its header stays below `HEADER`."""

DTYPES = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8,
    "bool": torch.bool,
}  # fmt: skip
_TAGS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""As safetensors spells them."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def pack(tensors: Mapping[str, Tensor], put: Callable[[Sequence[Buffer]], str]) -> list[TensorEntry]:
    """Give every chunk of `tensors` to `put`, which returns its digest; entries come in the order of the tensors."""
    entries: dict[str, TensorEntry] = {}
    # by name: chunks are the same however the tensors are ordered
    for group in _groups({name: tensors[name] for name in sorted(tensors)}):
        name, first = next(iter(group.items()))
        if _size(first) > SMALL:
            digests = [put(_pieces(piece)) for piece in _cut(first)]
            entries[name] = _entry(name, first, digests, OWN_CHUNK)
        else:
            # clones: safetensors refuses tensors that share memory
            digest = put([save({name: tensor.clone().contiguous() for name, tensor in group.items()})])
            entries |= {name: _entry(name, tensor, [digest], name) for name, tensor in group.items()}
    return [entries[name] for name in tensors]


def _groups(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    group: dict[str, Tensor] = {}
    held = 0
    for name, given in tensors.items():
        tensor = given.detach().cpu()
        _check(name, tensor)
        if _size(tensor) > SMALL or name == OWN_CHUNK:  # a small tensor of that very name must not look grouped
            yield {name: tensor}
            continue
        group[name] = tensor
        held += _size(tensor)
        if held >= SMALL or len(group) == MANY:
            yield group
            group, held = {}, 0
    if group:
        yield group


def _check(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.dtype not in _NAMES:
        what = f"of {tensor.dtype}" if tensor.layout == torch.strided else f"with layout {tensor.layout}"
        raise UsageError(f"{name!r} is a tensor {what}; a registry holds dense ones of {', '.join(DTYPES)}")
    if len(name) > 200:
        raise UsageError(f"tensor name {name[:40]!r}… has {len(name)} characters; 200 is the most")


def _cut(tensor: Tensor) -> Iterator[Tensor]:
    flat = tensor.contiguous().view(-1)
    # Cut at fixed places: a change in the middle of a tensor leaves its other chunks as they were.
    step = LARGEST // flat.element_size()
    return (flat[at : at + step] for at in range(0, flat.numel(), step))


def _pieces(flat: Tensor) -> list[Buffer]:
    """A safetensors file of one tensor, from the tensor's own memory: the library would copy it twice."""
    entry = {"dtype": _TAGS[flat.dtype], "shape": [flat.numel()], "data_offsets": [0, _size(flat)]}
    text = msgspec.json.encode({OWN_CHUNK: entry})
    # safetensors wants the data to begin at a multiple of 8.
    text += b" " * (-len(text) % 8)
    content = memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]  # an array is a buffer
    return [len(text).to_bytes(8, "little") + text, content]


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _entry(name: str, tensor: Tensor, digests: list[str], key: str) -> TensorEntry:
    return TensorEntry(name, _NAMES[tensor.dtype], list(tensor.shape), digests, key)


def unpack(entries: list[TensorEntry], read: Callable[[str], bytes]) -> dict[str, Tensor]:
    """Undo `pack`; `read` returns the checked bytes of a chunk. RegistryError names a tensor that does not fit."""
    tensors: dict[str, Tensor] = {}
    groups: dict[str, dict[str, Tensor]] = {}
    for entry in entries:
        if entry.key == OWN_CHUNK or len(entry.chunks) != 1:
            parts = [_parse(read(digest), entry).get(entry.key) for digest in entry.chunks]
        else:
            digest = entry.chunks[0]
            if digest not in groups:
                groups[digest] = _parse(read(digest), entry)
            parts = [groups[digest].get(entry.key)]
        tensors[entry.name] = _join(entry, parts)
    return tensors


def _parse(data: bytes, entry: TensorEntry) -> dict[str, Tensor]:
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise RegistryError(f"a chunk of {entry.name!r} is no safetensors file: {error}") from None


def _join(entry: TensorEntry, parts: list[Tensor | None]) -> Tensor:
    found = [part for part in parts if part is not None]
    dtype = DTYPES.get(entry.dtype)
    if not found or len(found) != len(parts) or any(part.dtype != dtype for part in found):
        raise RegistryError(f"the chunks of {entry.name!r} do not hold a tensor of {entry.dtype}")
    flat = found[0].reshape(-1) if len(found) == 1 else torch.cat([part.reshape(-1) for part in found])
    try:
        return flat.view(entry.shape)
    except RuntimeError:
        raise RegistryError(f"{entry.name!r} has {flat.numel()} elements, not the shape {entry.shape}") from None
