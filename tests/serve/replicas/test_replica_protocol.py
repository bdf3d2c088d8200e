"""Pieces and tensors arrive as they were sent; what does not fit is refused before memory is taken."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.serve.errors import RequestError
from shoal.serve.replicas.protocol import PIECE, PieceCollector, cut_pieces, pack_tensors, unpack_tensors


@given(st.integers(0, 3 * PIECE + 1))
def test_pieces_make_the_whole_again(size: int) -> None:
    data = bytes(size)
    collector = PieceCollector(size)
    ends = [collector.add(at, size, piece) for at, piece in cut_pieces(data)]
    assert (collector.data, ends[-1], any(ends[:-1])) == (data, True, False)


@pytest.mark.parametrize(("at", "size", "piece"), [(1, 4, b"a"), (0, 5, b"a"), (0, 4, b"abcde"), (0, 4, b"")])
def test_a_piece_that_does_not_follow_is_refused(at: int, size: int, piece: bytes) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        PieceCollector(4).add(at, size, piece)


def test_tensors_of_all_kinds_arrive_as_they_were() -> None:
    sent = {
        "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
        "text": np.array([b"one", b""], dtype=object),
        "flags": np.array([True, False]),
        "none": np.zeros((0, 4), np.int64),
    }
    came = unpack_tensors(pack_tensors(sent))
    assert list(came) == list(sent)
    for name, array in sent.items():
        assert (came[name].dtype, came[name].tolist()) == (array.dtype, array.tolist())


@given(st.binary(max_size=200))
def test_bytes_that_are_no_tensors_are_refused(data: bytes) -> None:
    with pytest.raises(RequestError):
        unpack_tensors(data)
