"""Dealing: nothing lost, nothing twice, nothing out of order."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from shoal.data.deal import by_batch, by_sample, counts, deal, groups, steps

totals = st.integers(0, 60)
workers = st.integers(1, 7)
batches = st.integers(1, 5)


def reader(total):
    items = iter(range(total))
    return lambda number: list(islice(items, number))


def test_remainder_goes_to_lower_ranks():
    assert counts(7, 3) == (3, 2, 2)
    assert counts(2, 4) == (1, 1, 0, 0)
    assert counts(0, 2) == (0, 0)


@given(totals, workers)
def test_counts_are_even_and_complete(total, size):
    shares = counts(total, size)
    assert sum(shares) == total
    assert len(shares) == size
    assert max(shares) - min(shares) <= 1
    assert list(shares) == sorted(shares, reverse=True)


@given(totals, workers)
def test_deal_gives_consecutive_slices(total, size):
    parts = deal(range(total), size)
    assert [sample for part in parts for sample in part] == list(range(total))
    assert tuple(map(len, parts)) == counts(total, size)


def test_shares_move_the_borders_within_a_group():
    assert counts(8, 4, (4, 2, 1, 1)) == (4, 2, 1, 1)
    assert counts(10, 3, (2, 1, 1)) == (5, 3, 2)
    assert counts(128, 4, (1000, 1000, 1000, 250)) == (40, 39, 39, 10)


def test_nobody_is_left_without_a_sample_where_there_is_one_for_everybody():
    assert counts(5, 3, (1000, 1, 1)) == (3, 1, 1)
    assert counts(3, 3, (1000, 1, 1)) == (1, 1, 1)
    assert counts(2, 3, (1, 1, 1000)) == (1, 1, 0)


@given(totals, st.lists(st.integers(1, 64), min_size=1, max_size=7))
def test_shares_are_complete_and_nearly_in_proportion(total, shares):
    sizes = counts(total, len(shares), tuple(shares))
    assert sum(sizes) == total
    assert tuple(map(len, deal(range(total), len(shares), tuple(shares)))) == sizes
    if total >= len(shares):
        assert min(sizes) >= 1
    raised = sum(max(0.0, 1 - total * share / sum(shares)) for share in shares)
    for size, share in zip(sizes, shares, strict=True):
        assert size < total * share / sum(shares) + 1 + (total < len(shares))
        assert size > total * share / sum(shares) - 1 - raised - 1 or total < len(shares)


@given(totals, st.lists(st.integers(1, 9), min_size=1, max_size=5), batches, st.booleans())
def test_global_order_does_not_depend_on_the_shares(total, shares, batch, drop_last):
    size = len(shares)
    how = {"size": size, "batch": batch, "drop_last": drop_last, "shares": tuple(shares)}
    ranks = [list(by_sample(reader(total), rank=rank, **how)) for rank in range(size)]
    alone = list(groups(reader(total), size * batch, drop_last=drop_last))
    assert [[sample for _, own in step for sample in own] for step in zip(*ranks, strict=True)] == alone


@given(totals, workers, batches, st.booleans())
def test_global_order_does_not_depend_on_the_workers(total, size, batch, drop_last):
    alone = list(groups(reader(total), size * batch, drop_last=drop_last))
    ranks = [
        list(by_sample(reader(total), rank=rank, size=size, batch=batch, drop_last=drop_last)) for rank in range(size)
    ]
    steps = [[sample for _, own in step for sample in own] for step in zip(*ranks, strict=True)]
    assert steps == alone
    for step in zip(*ranks, strict=True):
        assert {sizes for sizes, _ in step} == {tuple(len(own) for _, own in step)}


@given(totals, workers, batches, st.booleans())
def test_length_is_the_same_on_every_worker(total, size, batch, drop_last):
    how = {"size": size, "batch": batch, "drop_last": drop_last}
    for rank in range(size):
        assert steps(total, **how) == len(list(by_sample(reader(total), rank=rank, **how)))


@given(st.lists(st.lists(st.integers(), max_size=3), max_size=20), workers)
def test_whole_batches_go_round(items, size):
    ranks = []
    for rank in range(size):
        left = iter(items)
        read = lambda number, left=left: list(islice(left, number))  # noqa: E731
        ranks.append(list(by_batch(read, rank=rank, size=size, weight=len)))
    given_out = [own for step in zip(*ranks, strict=True) for _, own in step if own is not None]
    assert given_out == [item for item in items if item]
    assert all(any(sizes) for sizes, _ in ranks[0])
