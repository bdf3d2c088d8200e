"""Numbers of a few bits side by side, and ascending places as few bits, for sparse and fixed-point payloads.

Places are written as Elias and Fano did (P. Elias, "Efficient storage and retrieval by content and address of static
files", JACM 1974; R. Fano, 1971): the lower bits of each packed, the upper ones as gaps in unary. For k of n places it
takes k (2 + log2(n/k)) bits at most, and its size is known from k and n alone.
"""

import numpy as np
import numpy.typing as npt

from shoal.core.errors import PayloadError
from shoal.wire import kernels

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]

PLACES_KERNELS = ("write_places", "read_places")
"""The kernels behind the functions of the same names."""


def packed_size(count: int, width: int) -> int:
    return -(-count * width // 8)


def pack(numbers: Numbers, width: int, out: Bytes) -> None:
    """Write each number's lowest `width` bits; higher bits must be zero."""
    if kernels.fast():
        kernels.get("pack_bits")(numbers, width, out)
    elif width:
        bits = (numbers[:, None] >> np.arange(width, dtype=np.uint32)) & 1
        out[:] = np.packbits(bits.astype(np.uint8).ravel(), bitorder="little")


def unpack(data: Bytes, width: int, count: int) -> Numbers:
    """Return the first `count` numbers; `data` has `packed_size` bytes."""
    numbers = np.zeros(count, np.uint32)
    if kernels.fast():
        kernels.get("unpack_bits")(data, width, numbers)
    elif width:
        bits = np.unpackbits(data, count=count * width, bitorder="little").reshape(count, width)
        numbers = (bits.astype(np.uint32) << np.arange(width, dtype=np.uint32)).sum(1, dtype=np.uint32)
    return numbers


def _low(count: int, numel: int) -> int:
    # Elias and Fano's choice of lower bits, which keeps the upper part below two bits a place.
    return max(0, (numel // count).bit_length() - 1) if count else 0


def places_size(count: int, numel: int) -> int:
    """Bytes of `count` places among `numel`."""
    low = _low(count, numel)
    return packed_size(count, low) + packed_size(count + (numel >> low) + 1, 1) if count else 0


def write_places(places: Places, numel: int, out: Bytes) -> None:
    """Places must ascend strictly."""
    count = len(places)
    if not count:
        return
    low = _low(count, numel)
    split = packed_size(count, low)
    if kernels.fast():
        kernels.get("write_places")(places, low, split, out)
        return
    pack((places & ((1 << low) - 1)).astype(np.uint32), low, out[:split])
    # One bit per place and one per bucket of 2^low: number i of bucket b sets bit b + i, so gaps need no length.
    upper = np.zeros(8 * (len(out) - split), np.uint8)
    upper[(places >> low) + np.arange(count)] = 1
    out[split:] = np.packbits(upper, bitorder="little")


def read_places(data: Bytes, count: int, numel: int) -> Places:
    """Refuses what is not strictly ascending or lies outside; `data` is as long as `places_size` says."""
    if not count:
        return np.zeros(0, np.int64)
    low = _low(count, numel)
    split = packed_size(count, low)
    if kernels.fast():
        places = np.empty(count, np.int64)
        found = int(kernels.get("read_places")(data, low, split, places))
    else:
        places = unpack(data[:split], low, count).astype(np.int64)
        ones = np.flatnonzero(np.unpackbits(data[split:], bitorder="little"))
        found = len(ones)
        places[:found] |= (ones[:count] - np.arange(min(count, found))) << low
        if found == count and not (np.diff(places) > 0).all():
            found = -1
    # Two errors, because they have two causes: bytes were cut or added, or bits were changed.
    if found not in (count, -1):
        raise PayloadError(f"a payload of {count} places holds {found}; it was changed or is foreign")
    if found < 0 or places[-1] >= numel:
        raise PayloadError(f"a payload's places do not ascend within {numel} elements; it was changed or is foreign")
    return places


def add_at(places: Places, values: npt.NDArray[np.float32], out: npt.NDArray[np.float32]) -> None:
    """out[places] += values; the places are what `read_places` gave for as many elements."""
    if kernels.fast():
        kernels.get("add_at")(places, values, out)
    else:
        out[places] += values
