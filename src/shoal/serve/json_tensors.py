"""Nested lists of JSON as arrays, and back.

Values are decoded straight from the text with the type that the tensor has, so that nothing else gets through: numpy
by itself would turn a list with one long string into a table of long strings, and a thousand bytes into gigabytes.
"""

from functools import cache
from typing import Any

import msgspec
import numpy as np

from shoal.serve.errors import RequestError
from shoal.serve.tensors import DATATYPES, MOST_DIMENSIONS, Array

_LEAVES: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float, "V": float, "O": str}
"""What a value is in JSON, by the kind of the numpy type; bfloat16, which numpy does not know, has the kind V."""
# INT64 before FP32, because a decoder of floats takes whole numbers too.
_GUESSES = ("INT64", "FP32", "BOOL", "BYTES")
_BLANK = b" \t\r\n"


@cache
def _decoder(leaf: type, depth: int) -> "msgspec.json.Decoder[Any]":
    kind: Any = leaf
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def decode_array(name: str, text: bytes | memoryview, datatype: str) -> Array:
    """The array that the JSON text holds; RequestError unless every value is of the type and rows are equally long."""
    dtype, depth = DATATYPES[datatype], _depth(text)
    if depth > MOST_DIMENSIONS:
        raise RequestError(f"input {name!r} has more than {MOST_DIMENSIONS} dimensions")
    try:
        values = _decoder(_LEAVES[dtype.kind], depth).decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"input {name!r} holds what is not {datatype}: {str(error)[:120]}") from None
    if datatype == "BYTES":
        return _strings(name, values, depth)
    try:
        with np.errstate(over="ignore"):  # too large for a float of this type is infinity, as everywhere
            return np.array(values, dtype=dtype)
    except OverflowError:
        raise RequestError(f"input {name!r} holds numbers that {datatype} has no room for") from None
    except ValueError:
        raise RequestError(f"input {name!r} has rows of different lengths") from None


def guess_array(name: str, text: bytes | memoryview) -> Array:
    """As `decode_array`, for an input whose type the model does not declare."""
    for datatype in _GUESSES:
        try:
            return decode_array(name, text, datatype)
        except RequestError as error:
            if "rows" in str(error):
                raise
    raise RequestError(f"input {name!r} is neither numbers, truth values nor strings")


def _depth(text: bytes | memoryview) -> int:
    """How deep the first value is nested, which the others must be too; no further than the limit."""
    depth = 0
    for byte in bytes(text[: 64 * MOST_DIMENSIONS]):
        if byte == ord("["):
            depth += 1
        elif byte not in _BLANK:
            break
    return depth


def _strings(name: str, values: Any, depth: int) -> Array:
    shape, flat = [], [values]
    for _ in range(depth):
        lengths = {len(each) for each in flat}
        if len(lengths) > 1:
            raise RequestError(f"input {name!r} has rows of different lengths")
        shape.append(lengths.pop() if lengths else 0)
        flat = [inner for each in flat for inner in each]
    array = np.empty(len(flat), dtype=object)
    array[:] = [each.encode(errors="surrogatepass") for each in flat]
    return array.reshape(shape)


def json_values(array: Array) -> Any:
    """Nested lists for JSON; bytes as text."""
    if array.dtype == object:
        flat = np.empty(array.size, dtype=object)
        flat[:] = [each.decode(errors="replace") for each in array.ravel()]
        return flat.reshape(array.shape).tolist()
    return array.tolist()
