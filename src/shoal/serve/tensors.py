"""Tensors of requests: names, data types and shapes as the Open Inference Protocol writes them, numpy inside."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from shoal.serve.errors import BodyTooLarge, RequestError

Array = NDArray[Any]
Tensors = dict[str, Array]
"""Inputs or outputs of a model, by name."""

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "BF16": np.dtype(bfloat16),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
"""Names of the protocol."""
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
MOST_DIMENSIONS = 16


@dataclass(frozen=True)
class TensorSpec:
    """One declared input or output; -1 is any length, and as the first one the number of samples."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def is_batched(self) -> bool:
        return bool(self.shape) and self.shape[0] == -1

    def check(self, array: Array) -> None:
        """RequestError unless the array fits."""
        given = datatype_of(array)
        if given != self.datatype:
            raise RequestError(f"input {self.name!r} is {given}; the model takes {self.datatype}")
        if not fits(self.shape, array.shape):
            raise RequestError(f"input {self.name!r} has shape {list(array.shape)}; the model takes {list(self.shape)}")

    def example(self, rows: int = 1) -> Array:
        """Zeros of the smallest shape that fits."""
        shape = [rows if self.is_batched and at == 0 else max(length, 1) for at, length in enumerate(self.shape)]
        shape = [1 if length == -1 else length for length in shape]
        if self.datatype == "BYTES":
            return np.full(shape, b"", dtype=object)
        return np.zeros(shape, DATATYPES[self.datatype])


def fits(declared: Sequence[int], given: Sequence[int]) -> bool:
    pairs = zip(declared, given, strict=False)
    return len(declared) == len(given) and all(want in (-1, have) for want, have in pairs)


def datatype_of(array: Array) -> str:
    name = _NAMES.get(array.dtype)
    if name is None:
        raise RequestError(f"{array.dtype} is not a type of the protocol; use one of {', '.join(DATATYPES)}")
    return name


def check_shape(name: str, shape: Sequence[int], most: int) -> int:
    """The number of elements, before anything is allocated; an error if it is absurd."""
    if len(shape) > MOST_DIMENSIONS:
        raise RequestError(f"input {name!r} has {len(shape)} dimensions; {MOST_DIMENSIONS} is the most")
    if any(length < 0 for length in shape):
        raise RequestError(f"input {name!r} has shape {list(shape)}; a length is 0 or more")
    # Python's integers do not overflow, whatever lengths a client sends.
    count = prod(shape)
    if count > most:
        raise BodyTooLarge(f"input {name!r} has {count} elements; {most} is the most")
    return count


def rows_of(specs: Sequence[TensorSpec], tensors: Tensors) -> int:
    """How many samples the request has; RequestError where inputs disagree about it."""
    counts = {spec.name: len(tensors[spec.name]) for spec in specs if spec.is_batched and spec.name in tensors}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise RequestError(f"inputs have different numbers of samples ({said}); give each the same")
    return next(iter(counts.values()), 1)


def check_inputs(specs: Sequence[TensorSpec], tensors: Tensors) -> None:
    """RequestError unless these are the declared inputs; a servable that declares none takes what it is given."""
    if not specs:
        return
    wanted = {spec.name: spec for spec in specs}
    for name in tensors:
        if name not in wanted:
            raise RequestError(f"the model has no input {name[:80]!r}; it takes {', '.join(wanted)}")
    for name, spec in wanted.items():
        if name not in tensors:
            raise RequestError(f"input {name!r} is missing; the model takes {', '.join(wanted)}")
        spec.check(tensors[name])
