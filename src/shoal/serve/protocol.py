"""The Open Inference Protocol, version 2, over HTTP: JSON, and the extension for binary tensors.

A body is JSON, or JSON of `Inference-Header-Content-Length` bytes and then tensors in the order of the inputs that
say `binary_data_size`. Every size is checked against what is there before memory is taken for it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from shoal.serve.batcher import LAST, NORMAL
from shoal.serve.errors import BodyTooLarge, RequestError
from shoal.serve.json_tensors import decode_array, json_values
from shoal.serve.tensors import DATATYPES, Array, Tensors, TensorSpec, check_shape, datatype_of

MOST_TENSORS = 64
"""Inputs or outputs of one request."""
MOST_JSON = 16 << 20
"""Bytes of JSON: a number takes 2 bytes there and 32 once it is a Python object."""
MOST_ELEMENTS = 1 << 26
LONGEST_ID = 256


class InputTensor(msgspec.Struct, frozen=True):
    """One input of a request."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw(b"")
    """Values as JSON text: decoded when the type is known."""


class OutputWish(msgspec.Struct, frozen=True):
    """One output that a request asks for."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(msgspec.Struct, frozen=True):
    """The JSON of a request."""

    inputs: list[InputTensor]
    outputs: list[OutputWish] = []
    id: str = ""
    parameters: dict[str, Any] = {}

    @property
    def timeout(self) -> float | None:
        """Seconds the client waits; `timeout` is given in microseconds, as the scheduling extension says."""
        given = self.parameters.get("timeout")
        return float(given) / 1e6 if isinstance(given, int | float) and given > 0 else None

    @property
    def level(self) -> int:
        """How urgent it is: `priority` of the scheduling extension, 1 before all others; 0 or none is normal."""
        given = self.parameters.get("priority", 0)
        # To Python True is an int, and would be the most urgent.
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= LAST:
            raise RequestError(f"priority {str(given)[:20]!r} is not a number from 0 to {LAST}; 1 is the most urgent")
        return given or NORMAL

    def is_binary(self, name: str) -> bool:
        """Whether this output is wanted as bytes."""
        default = self.parameters.get("binary_data_output") is True
        wish = next((each for each in self.outputs if each.name == name), None)
        return default if wish is None else bool(wish.parameters.get("binary_data", default))


_DECODER = msgspec.json.Decoder(InferRequest)


def decode_request(body: bytes, header_length: int | None) -> tuple[InferRequest, Tensors]:
    """A request and its inputs; RequestError says what is wrong with it."""
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        raise RequestError(f"Inference-Header-Content-Length is {length} and the body has {len(body)} bytes")
    if length > MOST_JSON:
        raise BodyTooLarge(f"{length} bytes of JSON; {MOST_JSON} is the most; send binary tensors")
    try:
        request = _DECODER.decode(memoryview(body)[:length])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is no inference request: {str(error)[:200] or 'it is nested too deep'}") from None
    if not 0 < len(request.inputs) <= MOST_TENSORS or len(request.outputs) > MOST_TENSORS:
        raise RequestError(f"a request has 1 to {MOST_TENSORS} inputs, and as many outputs at most")
    if len(request.id) > LONGEST_ID:
        raise RequestError(f"id has {len(request.id)} characters; {LONGEST_ID} is the most")
    return request, _inputs(request, memoryview(body)[length:])


def _inputs(request: InferRequest, rest: memoryview) -> Tensors:
    tensors: Tensors = {}
    for each in request.inputs:
        if each.name in tensors:
            raise RequestError(f"input {each.name[:80]!r} is given twice")
        dtype = DATATYPES.get(each.datatype)
        if dtype is None:
            raise RequestError(f"datatype {each.datatype[:20]!r} is unknown; use one of {', '.join(DATATYPES)}")
        count = check_shape(each.name[:80], each.shape, MOST_ELEMENTS)
        size = each.parameters.get("binary_data_size")
        if size is None:
            tensors[each.name] = _from_json(each, count)
            continue
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(rest):
            raise RequestError(f"input {each.name[:80]!r} says {size!r:.40} bytes; {len(rest)} are left in the body")
        tensors[each.name] = tensor_from_bytes(each, rest[:size], count)
        rest = rest[size:]
    if len(rest):
        raise RequestError(f"{len(rest)} bytes of the body belong to no input")
    return tensors


def _from_json(tensor: InputTensor, count: int) -> Array:
    text = memoryview(tensor.data)
    if not text:
        raise RequestError(f"input {tensor.name[:80]!r} has neither data nor binary_data_size")
    array = decode_array(tensor.name[:80], text, tensor.datatype)
    if array.size != count:
        raise RequestError(f"input {tensor.name[:80]!r} has {array.size} elements; shape {tensor.shape} has {count}")
    return array.reshape(tensor.shape)


def tensor_from_bytes(tensor: InputTensor, data: memoryview, count: int) -> Array:
    """The array of `count` elements that the bytes are; RequestError unless they are as many as it takes."""
    dtype = DATATYPES[tensor.datatype]
    if tensor.datatype == "BYTES":
        return _octet_strings(tensor, data, count)
    if len(data) != count * dtype.itemsize:
        raise RequestError(
            f"input {tensor.name[:80]!r} has {len(data)} bytes; {tensor.datatype} of shape {tensor.shape} has "
            f"{count * dtype.itemsize}"
        )
    # The protocol is little-endian whatever this machine is; on a little-endian one nothing is copied.
    array = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False)
    if tensor.datatype == "BOOL" and array.view(np.uint8).max(initial=0) > 1:
        raise RequestError(f"input {tensor.name[:80]!r} holds bytes that are neither 0 nor 1, which BOOL are")
    return array.reshape(tensor.shape)


def _octet_strings(tensor: InputTensor, data: memoryview, count: int) -> Array:
    """Each string has its length before it, in four bytes."""
    if count * 4 > len(data):
        raise RequestError(f"input {tensor.name[:80]!r} has {len(data)} bytes for {count} strings")
    found, at = np.empty(count, dtype=object), 0
    for number in range(count):
        length = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + length > len(data):
            raise RequestError(f"input {tensor.name[:80]!r} ends in the middle of string {number}")
        found[number] = bytes(data[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(data):
        raise RequestError(f"input {tensor.name[:80]!r} has {len(data) - at} bytes after its last string")
    return found.reshape(tensor.shape)


def encode_answer(request: InferRequest, name: str, number: int, outputs: Tensors) -> tuple[bytes, int | None]:
    """The body of an answer; with binary tensors also the length of its JSON."""
    told: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for key in wanted_outputs(request, outputs):
        array = outputs[key]
        entry: dict[str, Any] = {"name": key, "datatype": datatype_of(array), "shape": list(array.shape)}
        if request.is_binary(key):
            tail.append(octets(array))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = json_values(array.ravel())
        told.append(entry)
    answer: dict[str, Any] = {"model_name": name, "model_version": str(number), "outputs": told}
    if request.id:
        answer["id"] = request.id
    head = msgspec.json.encode(answer)
    return (b"".join([head, *tail]), len(head)) if tail else (head, None)


def wanted_outputs(request: InferRequest, outputs: Tensors) -> Sequence[str]:
    """Names of the outputs that the request asks for; all if it names none."""
    if not request.outputs:
        return list(outputs)
    for each in request.outputs:
        if each.name not in outputs:
            raise RequestError(f"the model has no output {each.name[:80]!r}; it gives {', '.join(outputs)}")
    return [each.name for each in request.outputs]


def octets(array: Array) -> bytes:
    if array.dtype == object:
        return b"".join(len(each).to_bytes(4, "little") + each for each in array.ravel())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def metadata(name: str, numbers: Sequence[int], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Any:
    def told(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in specs]

    versions = [str(number) for number in numbers]
    platform = "shoal"
    return {"name": name, "versions": versions, "platform": platform, "inputs": told(inputs), "outputs": told(outputs)}
