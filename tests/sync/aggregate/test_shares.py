"""A bucket cut among its owners: nothing is lost, nothing is twice."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shoal.sync.aggregate.shares import STEP, shares
from shoal.wire.layout import FlatLayout


@given(st.lists(st.integers(0, 200), max_size=5), st.integers(0, 90), st.integers(1, 9))
def test_shares_are_the_whole_side_by_side(sizes: list[int], plain: int, workers: int) -> None:
    coded = FlatLayout.of([(f"w{i}", (n, 1)) for i, n in enumerate(sizes)])
    found = shares(coded, FlatLayout.flat(plain), workers)
    assert len(found) == workers
    for numel, cuts in ((coded.numel, [s.coded for s in found]), (plain, [s.plain for s in found])):
        assert cuts[0].start == 0
        assert cuts[-1].stop == numel
        for one, other in pairwise(cuts):
            assert one.start <= one.stop == other.start
            assert other.start % STEP == 0 or other.start == numel
    for share in found:
        assert share.layout.numel == share.coded.stop - share.coded.start
        assert share.plain_layout.numel == share.plain.stop - share.plain.start
    names = [(p.name, p.numel) for share in found for p in share.layout.parts]
    for number, size in enumerate(sizes):
        assert sum(n for name, n in names if name == f"w{number}") == size
