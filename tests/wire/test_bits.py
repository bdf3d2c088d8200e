"""Numbers of a few bits and places among many: written and read back, in the declared size, hostile ones refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import PayloadError
from shoal.wire import bits, kernels


@settings(deadline=None)
@given(st.integers(0, 24), st.integers(0, 200), st.integers(0, 1 << 30))
def test_numbers_come_back(width, count, seed):
    numbers = np.random.default_rng(seed).integers(0, 1 << width, count).astype(np.uint32)
    out = np.zeros(bits.packed_size(count, width), np.uint8)
    bits.pack(numbers, width, out)
    assert (bits.unpack(out, width, count) == numbers).all()
    with kernels.reference():
        again = np.zeros_like(out)
        bits.pack(numbers, width, again)
        assert (again == out).all()
        assert (bits.unpack(out, width, count) == numbers).all()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.floats(0, 1), st.integers(0, 1 << 30))
def test_places_come_back_in_the_size_that_follows_from_their_number(numel, part, seed):
    count = round(part * numel)
    places = np.sort(np.random.default_rng(seed).choice(numel, count, replace=False)).astype(np.int64)
    out = np.zeros(bits.places_size(count, numel), np.uint8)
    bits.write_places(places, numel, out)
    assert (bits.read_places(out, count, numel) == places).all()
    with kernels.reference():
        again = np.zeros_like(out)
        bits.write_places(places, numel, again)
        assert (again == out).all()
        assert (bits.read_places(out, count, numel) == places).all()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 60), st.integers(0, 60), st.binary(min_size=64, max_size=64))
def test_the_kernel_refuses_the_places_that_the_reference_refuses(numel, count, data):
    count = min(count, numel)
    given_ = np.frombuffer(data, np.uint8)[: bits.places_size(count, numel)].copy()

    def read():
        try:
            return bits.read_places(given_, count, numel).tolist()
        except PayloadError as error:
            return str(error)

    found = read()
    with kernels.reference():
        assert read() == found


def test_places_take_few_bits():
    """One in a thousand: the entropy is 11.4 bits a place."""
    assert bits.places_size(1000, 1_000_000) * 8 / 1000 < 13


@pytest.mark.parametrize("places", [[3, 3], [5, 2], [1, 9]])
def test_places_that_do_not_ascend_within_are_refused(places):
    out = np.zeros(bits.places_size(2, 8), np.uint8)
    bits.pack(np.array([p & 3 for p in places], np.uint32), 2, out[:1])
    upper = np.zeros(8 * (len(out) - 1), np.uint8)
    for number, place in enumerate(places):
        upper[(place >> 2) + number] = 1
    out[1:] = np.packbits(upper, bitorder="little")
    with pytest.raises(PayloadError):
        bits.read_places(out, 2, 8)
