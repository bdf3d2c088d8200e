"""Parameters cut into shards: every element once, balanced whatever the sizes, the same on every worker."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.sync.server.cut import FINENESS, LEAST_PIECE, ShardPiece, cut_into_shards

SIZES = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 200_000)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 9))
def test_every_element_lies_in_one_shard_and_no_shard_is_much_larger(sizes: list[int], shards: int) -> None:
    cuts = cut_into_shards(sizes, shards)
    assert len(cuts) == shards
    seen = [np.zeros(size, np.int8) for size in sizes]
    for cut in cuts:
        for piece in cut.pieces:
            seen[piece.tensor][piece.start : piece.stop] += 1
    assert all((each == 1).all() for each in seen)
    piece = max(LEAST_PIECE, sum(sizes) / shards / FINENESS + 1)
    assert max(cut.size for cut in cuts) <= sum(sizes) / shards + piece
    assert cuts == cut_into_shards(sizes, shards)


def test_a_huge_tensor_is_cut_and_small_ones_are_packed_whole() -> None:
    sizes = [1_000_000, *[300] * 50]
    cuts = cut_into_shards(sizes, 4)
    assert all(any(piece.tensor == 0 for piece in cut.pieces) for cut in cuts)
    whole = {piece.tensor for cut in cuts for piece in cut.pieces if piece.size == 300}
    assert whole == set(range(1, 51))
    loads = [cut.size for cut in cuts]
    assert max(loads) <= 1.01 * min(loads)


def test_neighbouring_pieces_of_a_tensor_are_one_copy() -> None:
    (cut,) = cut_into_shards([100_000, 5], 1)
    assert cut.pieces == (ShardPiece(0, 0, 100_000), ShardPiece(1, 0, 5))


@settings(max_examples=30, deadline=None)
@given(SIZES, st.integers(1, 5))
def test_what_is_packed_comes_back(sizes: list[int], shards: int) -> None:
    tensors = [np.random.default_rng(n).normal(size=size).astype(np.float32) for n, size in enumerate(sizes)]
    copies = [np.zeros_like(tensor) for tensor in tensors]
    for cut in cut_into_shards(sizes, shards):
        flat = np.empty(cut.size, np.float32)
        cut.pack(tensors, flat)
        cut.unpack(flat, copies)
    assert all(np.array_equal(one, other) for one, other in zip(tensors, copies, strict=True))


def test_no_shards_are_refused() -> None:
    with pytest.raises(UsageError, match="in 0 shards"):
        cut_into_shards([3], 0)
