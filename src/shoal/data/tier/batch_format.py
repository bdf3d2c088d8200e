"""Batches as bytes, in a closed format: tensors, numbers and strings in lists, tuples and dicts. No pickle.

    description (msgpack: a tree whose leaves are values, or the dtype and shape of a tensor) | bytes of all tensors

The reader makes nothing before the description is known to fit the bytes that have come, to the last one.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import Tensor

from shoal.core.errors import UsageError

LARGEST_BATCH = 1 << 30
"""Bytes of a batch's tensors."""
LARGEST_DESCRIPTION = 4 << 20
MOST_DIMENSIONS, DEEPEST = 16, 32
ALIGNMENT = 16
TENSOR_DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
}
_NAMES = {dtype: name for name, dtype in TENSOR_DTYPES.items()}

Description = bytes
Payload = bytearray | memoryview
Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_BATCH)]


class UnsendableError(UsageError):
    """A batch holds something that the format has no place for."""


class DamagedBatchError(ValueError):
    """Bytes that are no batch."""


class TensorNode(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="t"):
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[Size, ...], msgspec.Meta(max_length=MOST_DIMENSIONS)]


class ValueNode(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="v"):
    value: bool | int | float | str | None


class SequenceNode(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="s"):
    kind: Literal["list", "tuple"]
    items: "list[AnyNode]"


class MappingNode(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="m"):
    keys: list[str | int]
    items: "list[AnyNode]"


AnyNode = TensorNode | ValueNode | SequenceNode | MappingNode
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyNode] = msgspec.msgpack.Decoder(AnyNode)


def encode_batch(batch: Any) -> tuple[Description, Payload]:
    """Return a batch as bytes; raise UnsendableError, which names the place in the batch and its type."""
    tensors: list[Tensor] = []
    node = _describe(batch, "batch", tensors, 0)
    try:
        description = _encoder.encode(node)
    except (OverflowError, UnicodeEncodeError) as error:
        raise UnsendableError(f"the batch holds a number or a text that cannot be sent: {error}") from None
    total = sum(_place(tensor.nbytes) for tensor in tensors)
    if total > LARGEST_BATCH or len(description) > LARGEST_DESCRIPTION:
        raise UnsendableError(
            f"a batch of {total} bytes, described in {len(description)}; {LARGEST_BATCH} and {LARGEST_DESCRIPTION} "
            "are the most that is sent: make batches smaller, or collate their samples into tensors"
        )
    payload, at = bytearray(total), 0
    # torch refuses an empty buffer
    view = torch.frombuffer(payload, dtype=torch.uint8) if total else torch.empty(0, dtype=torch.uint8)
    for tensor in tensors:
        view[at : at + tensor.nbytes] = tensor.contiguous().reshape(-1).view(torch.uint8)
        at += _place(tensor.nbytes)
    return description, payload


def decode_batch(description: Description, payload: Payload) -> Any:
    """Return the batch, whose tensors share a copy of `payload`; raise DamagedBatchError if the bytes are none."""
    if len(description) > LARGEST_DESCRIPTION or len(payload) > LARGEST_BATCH:
        raise DamagedBatchError(f"a batch of {len(payload)} bytes, described in {len(description)}")
    try:
        node = _decoder.decode(description)
        needed = sum(_place(size) for size in _sizes(node, 0))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedBatchError(f"a batch that is not described: {error}") from None
    if needed != len(payload):
        raise DamagedBatchError(f"a batch of {len(payload)} bytes of which {needed} are described")
    # one copy for all tensors: the payload may be memory of a socket, which the script must not write to
    reader = _PayloadReader(bytearray(payload))
    return _build(node, reader.take)


def _describe(value: Any, where: str, tensors: list[Tensor], depth: int) -> AnyNode:
    if depth > DEEPEST:
        raise UnsendableError(f"{where[:80]} lies more than {DEEPEST} levels deep; collate into flatter batches")
    kind = type(value)
    if kind is Tensor:
        tensors.append(_checked(value, where))
        return TensorNode(_NAMES[value.dtype], tuple(value.shape))
    if value is None or kind in (bool, int, float, str):
        return ValueNode(value)
    if kind is list or kind is tuple:
        parts = [_describe(item, f"{where}[{i}]", tensors, depth + 1) for i, item in enumerate(value)]
        return SequenceNode("list" if kind is list else "tuple", parts)
    if kind is dict and all(type(key) in (str, int) for key in value):
        parts = [_describe(item, f"{where}[{key!r}]", tensors, depth + 1) for key, item in value.items()]
        return MappingNode(list(value), parts)
    raise UnsendableError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}; data servers send tensors, numbers, strings and None in "
        "lists, tuples and dicts: let collate_fn return these, or leave --data-servers out"
    )


def _checked(tensor: Tensor, where: str) -> Tensor:
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    if not plain or tensor.dtype not in _NAMES or tensor.dim() > MOST_DIMENSIONS:
        raise UnsendableError(
            f"{where} is a tensor of {tensor.dtype}, {tensor.layout} on {tensor.device}, requires_grad="
            f"{tensor.requires_grad}; data servers send dense ones of {', '.join(TENSOR_DTYPES)} in the processor's "
            "memory, without gradients"
        )
    # torch may keep conjugation and sign as flags, which the bytes would not show
    return tensor.resolve_conj().resolve_neg()


def _place(size: int) -> int:
    """Bytes that a tensor takes: the next one begins at a multiple of `ALIGNMENT`."""
    return size + -size % ALIGNMENT


def _sizes(node: AnyNode, depth: int) -> list[int]:
    """Bytes of every tensor, in order; sizes are numbers of Python, so no product overflows."""
    if depth > DEEPEST:
        raise RecursionError(f"more than {DEEPEST} levels")
    if isinstance(node, TensorNode):
        if node.dtype not in TENSOR_DTYPES:
            raise DamagedBatchError(f"a tensor of {node.dtype!r}; {', '.join(TENSOR_DTYPES)} can be sent")
        if math.prod(max(1, size) for size in node.shape) > LARGEST_BATCH:  # (0, 2**60) holds nothing, and is refused
            raise DamagedBatchError(f"a tensor of shape {node.shape}")
        return [math.prod(node.shape) * TENSOR_DTYPES[node.dtype].itemsize]
    if isinstance(node, MappingNode) and len(node.keys) != len(node.items):
        raise DamagedBatchError(f"a dict of {len(node.keys)} keys and {len(node.items)} values")
    if isinstance(node, ValueNode):
        return []
    return [size for item in node.items for size in _sizes(item, depth + 1)]


class _PayloadReader:
    def __init__(self, payload: bytearray) -> None:
        self._payload, self._at = payload, 0

    def take(self, node: TensorNode) -> Tensor:
        dtype, count = TENSOR_DTYPES[node.dtype], math.prod(node.shape)
        if not count:
            return torch.empty(node.shape, dtype=dtype)
        size = count * dtype.itemsize
        flat = torch.frombuffer(self._payload, dtype=torch.uint8, count=size, offset=self._at)
        self._at += _place(size)
        # torch does not say what it makes of other bytes
        if dtype is torch.bool and int(flat.max()) > 1:
            raise DamagedBatchError("a tensor of bool that holds other bytes than 0 and 1")
        return flat.view(dtype).reshape(node.shape)


def _build(node: AnyNode, take: Callable[[TensorNode], Tensor]) -> Any:
    if isinstance(node, TensorNode):
        return take(node)
    if isinstance(node, ValueNode):
        return node.value
    items = [_build(item, take) for item in node.items]
    if isinstance(node, MappingNode):
        return dict(zip(node.keys, items, strict=True))
    return items if node.kind == "list" else tuple(items)
