"""Nothing but our own messages and frames gets through the decoders, whatever is thrown at them."""

import random
import zlib

import msgspec
import numpy as np
import pytest
import zmq

from shoal.transport.endpoint import LARGEST_FRAME
from shoal.transport.messages import (
    CHUNK,
    DTYPES,
    LARGEST_HEAD,
    AnyMessage,
    ChunkAck,
    ChunkHeader,
    FrameRefused,
    LinkClosed,
    LinkHeartbeat,
    MessageAck,
    MessageChunk,
    MessageKind,
    decode,
    encode,
    join_frame,
    pack,
    split_frame,
    unpack,
)

HEAD = ("run", 1, 2, 3, 4)
CHUNK_MESSAGE = ChunkHeader(*HEAD, 0, 5, "ring", 0, 7, 4000, 99, "float32", (10,), zlib.crc32(bytes(40)))
PIECE = MessageChunk(*HEAD, 7, MessageKind.call, "port", 5, 0, 2, 999, 99, 6, 3, 9, 1)
MESSAGES = [
    CHUNK_MESSAGE, ChunkAck(*HEAD, 3, 9, 1, True), LinkHeartbeat(*HEAD, 3, 2), LinkClosed(*HEAD, "ended", -1),
    PIECE, MessageAck(*HEAD, 7, 3, 9, 1, False, True),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_come_back_as_they_were(message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "change",
    [
        {"generation": -1},
        {"sender": 2**17},
        {"seq": 2**63},
        {"run": "r" * 65},
        {"kind": "k" * 17},
        {"shape": (1,) * 9},
        {"shape": (-1,)},
        {"crc": 2**32},
        {"channel": 4096},
        {"dtype": "f" * 17},
    ],
)
def test_values_out_of_range_are_refused(change) -> None:
    with pytest.raises(FrameRefused):
        decode(encode(msgspec.structs.replace(CHUNK_MESSAGE, **change)))


@pytest.mark.parametrize("change", [{"port": "p" * 33}, {"kind": 7}, {"kind": -1}, {"stream": -1}, {"stamp": -1}])
def test_values_out_of_range_of_a_message_are_refused(change) -> None:
    with pytest.raises(FrameRefused):
        decode(encode(msgspec.structs.replace(PIECE, **change)))


@pytest.mark.parametrize("piece", [b"", b"x", bytes(range(256)) * 240], ids=len)
def test_a_piece_travels_in_the_frame_of_its_head(piece: bytes) -> None:
    frame, kept = join_frame(encode(PIECE), memoryview(piece))
    assert bytes(kept) == piece
    assert split_frame(frame.buffer) == (PIECE, piece)
    assert len(frame) <= LARGEST_FRAME


def test_a_frame_that_ends_before_its_head_is_refused() -> None:
    whole, head = bytes(join_frame(encode(PIECE), memoryview(b""))[0].buffer), len(encode(PIECE))
    for data in (
        b"",
        *(whole[:length] for length in range(len(whole))),
        b"\xc1" + (head - 1).to_bytes(2, "little") + whole[3:],
    ):
        with pytest.raises(FrameRefused):
            split_frame(memoryview(data))


def test_fuzzed_messages_are_refused_or_are_messages() -> None:
    """10^4 of them: bits flipped, cut, spliced, or noise; nothing but Refused may come out."""
    chance, good, taken = random.Random(4), [encode(m) for m in MESSAGES], 0
    for _ in range(10_000):
        data = bytearray(chance.choice(good))
        kind = chance.randrange(4)
        if kind == 0:
            for _ in range(chance.randint(1, 8)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[chance.randrange(len(data)) :]
        elif kind == 2:
            data[chance.randrange(len(data)) :] = chance.randbytes(chance.randrange(60))
        else:
            data = bytearray(chance.randbytes(chance.randrange(200)))
        try:
            message = decode(bytes(data))
        except FrameRefused:
            continue
        taken += 1
        assert isinstance(message, AnyMessage)
        if isinstance(message, ChunkHeader):
            with pytest.raises(FrameRefused):  # its frame, one byte short
                unpack(message, zmq.Frame(bytes(39)))
    assert taken < 5_000


def test_a_long_head_is_not_even_read() -> None:
    with pytest.raises(FrameRefused, match="at most"):
        decode(b"\x90" * (LARGEST_HEAD + 1))
    with pytest.raises(FrameRefused):
        decode(b"\x91" * LARGEST_HEAD)  # nested a thousand deep


@pytest.mark.parametrize("dtype", DTYPES)
def test_frames_come_back_as_they_were(dtype: str) -> None:
    array = np.arange(100).astype(DTYPES[dtype])
    payload = pack(array, dtype)
    chunk = ChunkHeader(*HEAD, 0, 0, "sum", 0, 0, array.nbytes, 0, payload.dtype, payload.shape, payload.crc)
    assert (unpack(chunk, payload.frame).array == array).all()
    array[:] = 0  # what travels is a copy
    assert payload.array.any()


@pytest.mark.parametrize(
    ("change", "frame"),
    [
        ({"dtype": "object"}, bytes(40)),
        ({"dtype": "float64"}, bytes(40)),
        ({"shape": (11,)}, bytes(40)),
        ({"shape": (2**31, 2**31)}, bytes(40)),
        ({"shape": ()}, bytes(40)),
        ({"crc": 1}, bytes(40)),
        ({}, bytes(39) + b"\1"),
        ({}, bytes(44)),
        ({"total": 39}, bytes(40)),
        ({"total": 2**40}, bytes(40)),
        ({"shape": (CHUNK // 4 + 1,), "total": 2 * CHUNK}, bytes(CHUNK + 4)),
    ],
)
def test_frames_that_are_not_what_was_announced_are_refused(change, frame: bytes) -> None:
    assert unpack(CHUNK_MESSAGE, zmq.Frame(bytes(40))).shape == (10,)
    with pytest.raises(FrameRefused):
        unpack(msgspec.structs.replace(CHUNK_MESSAGE, **change), zmq.Frame(frame))


def test_every_flipped_bit_is_found() -> None:
    payload = pack(np.arange(60, dtype=np.float32), "float32")
    chunk = ChunkHeader(*HEAD, 0, 0, "sum", 0, 0, 240, 0, payload.dtype, payload.shape, payload.crc)
    for bit in range(240 * 8):
        data = bytearray(payload.frame.bytes)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameRefused, match="checksum"):
            unpack(chunk, zmq.Frame(bytes(data)))
