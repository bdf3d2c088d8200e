"""What data servers send: a batch comes back bit for bit, and bytes that are no batch are refused, never more."""

import math
import random
from collections import OrderedDict
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.tier.batch_format import (
    TENSOR_DTYPES,
    DamagedBatchError,
    UnsendableError,
    decode_batch,
    encode_batch,
)
from shoal.data.tier.raising import is_equal

tensors = st.builds(
    lambda dtype, shape: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    st.sampled_from(list(TENSOR_DTYPES.values())),
    st.lists(st.integers(0, 4), max_size=4),
)
values = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=5)
batches = st.recursive(
    tensors | values,
    lambda part: (
        st.lists(part, max_size=3)
        | st.lists(part, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), part, max_size=3)
    ),
    max_leaves=8,
)


@given(batches)
def test_a_batch_comes_back_bit_for_bit(batch: object) -> None:
    description, payload = encode_batch(batch)
    assert is_equal(decode_batch(description, payload), batch)


def test_a_view_is_sent_as_what_it_shows() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(decode_batch(*encode_batch(whole.t()[1:3])), whole.t()[1:3])


def test_the_receiver_may_write_into_a_batch() -> None:
    description, payload = encode_batch([torch.zeros(3), torch.zeros(3)])
    first, second = decode_batch(description, memoryview(bytes(payload)))
    first += 1
    assert (first.sum(), second.sum()) == (3, 0)


class Pair(NamedTuple):
    x: object
    y: object


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"a": [np.zeros(3)]}, r"batch\['a'\]\[0\] is a numpy.ndarray; .*collate_fn"),
        (Pair(torch.zeros(1), 2), "batch is a .*Pair"),
        (OrderedDict(a=1), "OrderedDict"),
        ([lambda: 0], r"batch\[0\] is a builtins.function"),
        (torch.zeros(2, requires_grad=True), "requires_grad=True"),
        (torch.zeros(2).to_sparse(), "sparse"),
        ([2**70], "cannot be sent"),
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
    ],
)
def test_what_the_format_has_no_place_for_is_refused_by_name(batch: object, words: str) -> None:
    with pytest.raises(UnsendableError, match=words):
        encode_batch(batch)


def test_a_batch_that_holds_itself_is_refused() -> None:
    batch: list[object] = []
    batch.append(batch)
    with pytest.raises(UnsendableError, match="levels deep"):
        encode_batch(batch)


@pytest.mark.parametrize(
    "node",
    [
        ["t", "float32", [1 << 29]],  # more than has come
        ["t", "float32", [0, 1 << 40]],
        ["t", "float32", [1 << 28, 1 << 28, 1 << 28]],
        ["t", "object", [1]],
        ["t", "float32", [-1]],
        ["t", "float32", [1] * 17],
        ["s", "set", []],
        ["m", ["a"], []],
        ["v", b"bytes"],
        ["x"],
        7,
    ],
)
def test_a_description_that_does_not_fit_is_refused_before_anything_is_made(node: object) -> None:
    with pytest.raises(DamagedBatchError):
        decode_batch(msgspec.msgpack.encode(node), bytearray(16))


def test_a_description_deeper_than_any_batch_is_refused() -> None:
    for depth in (40, 100_000):
        with pytest.raises(DamagedBatchError):
            decode_batch(b"\x93\xa1s\xa4list\x91" * depth + b"\x92\xa1v\xc0", bytearray())


def test_a_bool_of_other_bytes_is_refused() -> None:
    description, payload = encode_batch(torch.tensor([True]))
    payload[0] = 2
    with pytest.raises(DamagedBatchError, match="bool"):
        decode_batch(description, payload)


def test_damaged_bytes_are_refused_or_another_batch() -> None:
    draw = random.Random(0)
    description, payload = encode_batch({"x": torch.arange(9), "y": [1, "two", (3.0, None)]})
    for _ in range(2000):
        bad = bytearray(description)
        for _ in range(draw.randint(1, 3)):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        try:
            decode_batch(bytes(bad[: draw.randint(0, len(bad))] if draw.random() < 0.3 else bad), payload)
        except DamagedBatchError:
            continue
