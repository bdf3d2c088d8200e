"""Tensors of gRPC messages: raw bytes, or lists of numbers by type; every size is checked before memory is taken."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.serve.errors import RequestError
from shoal.serve.protocol import (
    LONGEST_ID,
    MOST_ELEMENTS,
    MOST_TENSORS,
    InferRequest,
    InputTensor,
    OutputWish,
    octets,
    tensor_from_bytes,
    wanted_outputs,
)
from shoal.serve.tensors import DATATYPES, Array, Tensors, check_shape, datatype_of

_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Fields for values that are not raw; 16-bit floats have none."""


def decode_message(message: Any) -> tuple[InferRequest, Tensors]:
    """A request and its inputs; RequestError says what is wrong with it."""
    if not 0 < len(message.inputs) <= MOST_TENSORS or len(message.outputs) > MOST_TENSORS:
        raise RequestError(f"a request has 1 to {MOST_TENSORS} inputs, and as many outputs at most")
    if len(message.id) > LONGEST_ID:
        raise RequestError(f"id has {len(message.id)} characters; {LONGEST_ID} is the most")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(f"{len(raw)} raw contents for {len(message.inputs)} inputs; give one for each, or none")
    tensors: Tensors = {}
    for at, each in enumerate(message.inputs):
        if each.name in tensors:
            raise RequestError(f"input {each.name[:80]!r} is given twice")
        tensors[each.name] = _tensor(each, raw[at] if raw else None)
    wishes = [OutputWish(each.name) for each in message.outputs]
    return InferRequest([], wishes, message.id, _parameters(message.parameters)), tensors


def _parameters(given: Any) -> dict[str, Any]:
    chosen = {name: each.WhichOneof("parameter_choice") for name, each in given.items()}
    return {name: getattr(given[name], field) for name, field in chosen.items() if field is not None}


def _tensor(message: Any, raw: bytes | None) -> Array:
    name, datatype = message.name[:80], message.datatype
    if datatype not in DATATYPES:
        raise RequestError(f"datatype {datatype[:20]!r} is unknown; use one of {', '.join(DATATYPES)}")
    told = InputTensor(message.name, list(message.shape), datatype)
    count = check_shape(name, told.shape, MOST_ELEMENTS)
    if raw is not None:
        if message.HasField("contents"):
            raise RequestError(f"input {name!r} has contents and raw contents; give one of them")
        return tensor_from_bytes(told, memoryview(raw), count)
    if datatype not in _CONTENTS:
        raise RequestError(f"input {name!r} is {datatype}, which can only be sent as raw_input_contents")
    values = getattr(message.contents, _CONTENTS[datatype])
    if len(values) != count:
        raise RequestError(f"input {name!r} has {len(values)} elements; shape {told.shape} has {count}")
    return _array(name, values, datatype).reshape(told.shape)


def _array(name: str, values: Sequence[Any], datatype: str) -> Array:
    if datatype == "BYTES":
        found = np.empty(len(values), dtype=object)
        found[:] = list(values)
        return found
    try:
        return np.array(list(values), dtype=DATATYPES[datatype])
    except OverflowError:
        raise RequestError(f"input {name!r} holds numbers that {datatype} has no room for") from None


def fill_answer(message: Any, request: InferRequest, outputs: Tensors) -> Any:
    """The answer with its outputs as raw bytes."""
    message.id = request.id
    for name in wanted_outputs(request, outputs):
        array = outputs[name]
        message.outputs.add(name=name, datatype=datatype_of(array), shape=list(array.shape))
        message.raw_output_contents.append(octets(array))
    return message
