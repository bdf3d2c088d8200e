"""Tensors as a safetensors file: a header that says what lies where, then raw bytes. Nothing in it can run.

    | length of header | {"name": {"dtype", "shape", "data_offsets"}, …, "__metadata__": {…}} | bytes of all tensors |

Written piece by piece from the tensors' own memory: the library would copy everything twice, holding the
interpreter while the training thread waits for it. Reading is left to the library, which checks before it allocates.
"""

from collections.abc import Iterator, Mapping

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from shoal.core.disk import Buffer
from shoal.core.errors import ShoalError
from shoal.groups.base import as_bytes

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class ShardError(ShoalError):
    """Bytes that are no safetensors file, or tensors that do not go into one."""


def pieces(tensors: Mapping[str, Tensor], texts: Mapping[str, str] | None = None) -> Iterator[Buffer]:
    """The bytes of a file that holds `tensors` (dense, on the CPU) and `texts`; the tensors' memory is not copied."""
    header: dict[str, object] = {"__metadata__": dict(texts)} if texts else {}
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES or tensor.is_sparse:
            kind = "a sparse tensor" if tensor.is_sparse else f"a tensor of {tensor.dtype}"
            raise ShardError(f"{name!r} is {kind}; a checkpoint holds dense ones of {', '.join(DTYPES.values())}")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = msgspec.json.encode(header)
    # so that tensors begin at a multiple of eight bytes, as the library writes them too
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        if tensor.numel():
            yield memoryview(as_bytes(tensor.detach().contiguous()).numpy())  # type: ignore[arg-type]  # it is one


def parse(data: bytes, name: str = "shard") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Undo `pieces`."""
    try:
        tensors = load(data)
        header = msgspec.json.decode(data[8 : 8 + int.from_bytes(data[:8], "little")], type=dict[str, msgspec.Raw])
        texts = msgspec.json.decode(header.get("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str])
    except (SafetensorError, msgspec.DecodeError, KeyError, ValueError) as error:
        raise ShardError(f"{name} is no safetensors file: {error}") from None
    return tensors, texts
