"""A chunk as its difference to another one of the same size: lossless, and smaller the less the weights moved.

    SHOALDL1 | SHA-256 of the rest | digest of the base | size | bytes per number | planes
    plane:     0 stored or 1 deflated | length | bytes

Numbers are subtracted as integers, which counts the floats between them, and written with the sign in the lowest
bit. So what a training moves by little has zeros in its high bytes. Byte n of all numbers is plane n: high planes
deflate well, low ones are noise and stored as they are.
"""

import hashlib
import struct
import zlib

import numpy as np

from shoal.models.errors import RegistryError

MAGIC = b"SHOALDL1"
_FIXED = struct.Struct("<8s32s32sQB")
"""Magic, SHA-256 of what follows it, base, size, width."""
_PLANE = struct.Struct("<BQ")
_HASHED = len(MAGIC) + 32
"""Where the hashed part begins."""
LARGEST = 1 << 30
"""Bytes of a chunk: more is refused before memory is asked for."""
_TYPES = {1: "<i1", 2: "<i2", 4: "<i4", 8: "<i8"}


def encode(content: bytes, base: bytes, digest: str, width: int) -> bytes:
    """`content` as a difference to `base`, whose digest is given; `width` is the size of a number in bytes."""
    if len(content) != len(base):
        raise ValueError(f"a chunk of {len(content)} bytes has no difference to one of {len(base)}")
    with np.errstate(over="ignore"):  # differences wrap around, and back again
        apart = _numbers(content, width) - _numbers(base, width)
        # Zigzag: small negative differences become small numbers instead of ones with all high bits set.
        folded = (apart << 1) ^ (apart >> (8 * width - 1))
    planes = np.ascontiguousarray(folded.view(np.uint8).reshape(-1, width).T)
    body = b"".join(_pack(plane.tobytes()) for plane in planes)
    rest = bytes.fromhex(digest) + struct.pack("<QB", len(content), width) + body
    return MAGIC + hashlib.sha256(rest).digest() + rest


def decode(delta: bytes, base: bytes) -> bytes:
    """The content; RegistryError if the delta is damaged or of another base. Its caller checks the digest."""
    check(delta)
    *_, size, width = _FIXED.unpack_from(delta)
    if len(base) != size:
        raise RegistryError(f"a delta of {size} bytes has a base of {len(base)}")
    count = -(-size // width)
    planes = np.empty((width, count), np.uint8)
    at = _FIXED.size
    for number in range(width):
        kind, length = _PLANE.unpack_from(delta, at)
        at += _PLANE.size
        planes[number] = np.frombuffer(_unpack(kind, delta[at : at + length], count), np.uint8)
        at += length
    folded = np.ascontiguousarray(planes.T).reshape(-1).view(_TYPES[width].replace("i", "u"))
    with np.errstate(over="ignore"):
        apart = (folded >> 1).view(_TYPES[width]) ^ -(folded & 1).view(_TYPES[width])
        return bytes((apart + _numbers(base, width)).tobytes()[:size])


def check(delta: bytes) -> None:
    """RegistryError unless every byte is as it was written."""
    header(delta)
    if hashlib.sha256(delta[_HASHED:]).digest() != delta[len(MAGIC) : _HASHED]:
        raise RegistryError("a delta is damaged: its SHA-256 differs")


def header(delta: bytes) -> tuple[str, int]:
    """Digest of the base and size of the content, from the first `HEADER` bytes."""
    if len(delta) < _FIXED.size or delta[: len(MAGIC)] != MAGIC:
        raise RegistryError("it is no delta: it does not begin like one")
    _, _, base, size, width = _FIXED.unpack_from(delta)
    if size > LARGEST or width not in _TYPES:
        raise RegistryError(f"a delta of {size} bytes in numbers of {width}; {LARGEST} bytes are the most")
    return base.hex(), size


HEADER = _FIXED.size


def _numbers(data: bytes, width: int) -> "np.ndarray[tuple[int], np.dtype[np.signedinteger]]":
    return np.frombuffer(data + bytes(-len(data) % width), _TYPES[width])


def _pack(plane: bytes) -> bytes:
    """Huffman codes alone are fast and enough for noise; zeros in long runs are worth looking for."""
    packed = min((_deflate(plane, zlib.Z_HUFFMAN_ONLY), plane), key=len)
    # Only where Huffman alone halves it: the thorough search is slow and finds nothing in noise.
    if len(packed) < len(plane) // 2:
        packed = min((_deflate(plane, zlib.Z_DEFAULT_STRATEGY), packed), key=len)
    return _PLANE.pack(int(packed is not plane), len(packed)) + packed


def _deflate(plane: bytes, strategy: int) -> bytes:
    # Raw deflate: zlib's own header and checksum are not needed beside a SHA-256.
    packer = zlib.compressobj(6, zlib.DEFLATED, -15, 9, strategy)
    return packer.compress(plane) + packer.flush()


def _unpack(kind: int, data: bytes, count: int) -> bytes:
    try:
        # At most `count` bytes: a damaged stream must not unpack to gigabytes.
        plane = data if kind == 0 else zlib.decompressobj(-15).decompress(data, count)
    except zlib.error as error:
        raise RegistryError(f"a delta cannot be read: {error}") from None
    if len(plane) != count:
        raise RegistryError(f"a delta has a plane of {len(plane)} bytes instead of {count}")
    return plane
