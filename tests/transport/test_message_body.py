"""Heads and arrays come back as they were, in place; whatever is no body is refused."""

import random

import numpy as np
import pytest

from shoal.core.errors import UsageError
from shoal.transport.message_body import ARRAY_DTYPES, LARGEST_MESSAGE_HEAD, MOST_ARRAYS, MessageBody, parse
from shoal.transport.messages import ProtocolViolation


def whole(body: MessageBody, size: int = 1 << 30) -> bytearray:
    return bytearray().join(body.cut(start, min(start + size, body.total)) for start in range(0, body.total, size))


@pytest.mark.parametrize("size", [1, 7, 16, 1000, 1 << 20])
def test_head_and_arrays_come_back_however_they_are_cut(size: int) -> None:
    arrays = [np.arange(10, dtype=np.float64).reshape(2, 5), np.zeros((0, 3), np.int8), np.array(7, np.int64)]
    arrays += [np.arange(5, dtype=name) for name in ARRAY_DTYPES] + [np.arange(12).reshape(3, 4).T, np.empty(0)]
    head, came = parse(whole(MessageBody(b"head", arrays), size))
    assert head == b"head"
    assert [(a.shape, a.dtype) for a in came] == [(a.shape, a.dtype) for a in arrays]
    assert all(np.array_equal(a, b) for a, b in zip(came, arrays, strict=True))
    assert all(a.flags.aligned and a.flags.writeable for a in came)


def test_nothing_at_all_is_a_message_too() -> None:
    assert parse(whole(MessageBody(b""))) == (b"", [])


@pytest.mark.parametrize(
    ("head", "arrays"),
    [
        (bytes(LARGEST_MESSAGE_HEAD + 1), []),
        (b"", [np.zeros(1)] * (MOST_ARRAYS + 1)),
        (b"", [np.array(["text"], object)]),
        (b"", [np.zeros(1, np.complex64)]),
    ],
)
def test_what_does_not_travel_is_refused_at_once(head: bytes, arrays: list) -> None:
    with pytest.raises(UsageError):
        MessageBody(head, arrays)


def test_damaged_bodies_are_refused_or_are_bodies() -> None:
    chance, good = random.Random(3), whole(MessageBody(b"head", [np.arange(9), np.zeros(3, np.uint8)]))
    refused = 0
    for _ in range(3000):
        data = bytearray(good)
        match chance.randrange(3):
            case 0:
                for _ in range(chance.randint(1, 4)):
                    data[chance.randrange(40)] ^= 1 << chance.randrange(8)
            case 1:
                del data[chance.randrange(len(data)) :]
            case 2:
                data += chance.randbytes(chance.randint(1, 20))
        try:
            parse(data)
        except ProtocolViolation:
            refused += 1
    assert refused > 2000


def test_an_array_that_is_larger_than_the_message_is_refused() -> None:
    body = whole(MessageBody(b"", [np.zeros(8, np.uint8)]))
    place = body.index(b"\x08", 4)
    body[place] = 9
    with pytest.raises(ProtocolViolation, match=r"shape \(9,\)"):
        parse(body)
