"""What remains of a pass: nothing lost, nothing twice, whatever was taken and given back."""

import random
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from shoal.data.loader import ShardedLoader
from shoal.data.observer import NoObserver
from shoal.data.remaining import RemainingSamples, joined, remaining_of
from shoal.data.standing import LoaderPosition


def places(ranges):
    return [place for begin, end in ranges for place in range(begin, end)]


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30), st.integers(0, 99))
def test_taking_and_giving_back_conserve_every_position(moves, seed):
    chance, left, out, done = random.Random(seed), RemainingSamples(), [], []
    for number, back in moves:
        ranges, left = left.take(number)
        assert len(places(ranges)) == number
        assert not set(places(ranges)) & set(done)
        if back and number:
            cut = chance.randrange(number + 1)
            kept, lost = places(ranges)[:cut], places(ranges)[cut:]
            left = left.give_back([(p, p + 1) for p in lost])
            done += kept
        else:
            done += places(ranges)
        out = sorted(done)
        assert len(set(out)) == len(out)
        assert [p for p in range(left.position) if p not in left] == out
    rest = places(left.take(200)[0])
    assert sorted(out + rest)[:100] == list(range(100))
    assert rest == sorted(rest)


def test_what_was_not_dealt_cannot_come_back():
    _, left = RemainingSamples().take(5)
    left = left.give_back([(1, 3)])
    for wrong in ((4, 6), (2, 3), (7, 8)):
        with pytest.raises(ValueError, match="were not dealt"):
            left.give_back([wrong])


@given(st.integers(0, 30), st.integers(1, 7), st.lists(st.integers(0, 29), max_size=6, unique=True))
def test_reading_gives_what_remains_in_order(position, number, returned):
    back = sorted(p for p in returned if p < position)
    left = RemainingSamples(position, joined((p, p + 1) for p in back))
    items = iter(range(40))
    read = remaining_of(lambda n: list(islice(items, n)), left)
    found = []
    while part := read(number):
        found += part
    assert found == back + list(range(position, 40))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(61))


MAKERS = {
    "shuffled": lambda batch: DataLoader(range(61), batch, shuffle=True),
    "in order": lambda batch: DataLoader(range(61), batch),
    "own sampler": lambda batch: DataLoader(range(61), batch, sampler=list(reversed(range(61)))),
    "stream": lambda batch: DataLoader(Stream(), batch),
    "list of batches": lambda batch: [[n] for n in range(61)],
}


def plain(batch):
    return batch.tolist() if hasattr(batch, "tolist") else list(batch)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(MAKERS)), st.integers(1, 4), st.integers(1, 4), st.integers(0, 9), st.integers(1, 3))
def test_a_pass_goes_on_with_any_number_of_workers(kind, before, after, steps, batch):
    used = []
    standings = []
    for rank in range(before):
        loader = ShardedLoader(MAKERS[kind](batch), rank=rank, size=before, seed=3, observer=NoObserver(2))
        run = iter(loader)
        for _, found in zip(range(steps), run, strict=False):
            loader._open[0].trained = True
            used += plain(found)
        standings.append(loader.standing())
        run.close()
    kept = standings[0]
    if kept.open:  # else the pass was over, or nothing had been taken
        for rank in range(after):
            again = ShardedLoader(
                MAKERS[kind](batch), rank=rank, size=after, seed=3, observer=NoObserver(2), standing=kept
            )
            used += [sample for found in again for sample in plain(found)]
        assert sorted(used) == list(range(61))


def test_passes_that_were_done_are_not_done_again():
    loader = ShardedLoader(
        DataLoader(range(8), 2), rank=0, size=1, seed=0, observer=NoObserver(1), standing=LoaderPosition(1, [0, 1])
    )
    assert [len(list(loader)) for _ in range(3)] == [0, 0, 4]


@pytest.mark.parametrize("processes", [1, 2])
def test_what_loader_processes_had_fetched_ahead_is_not_lost(processes):
    def make():
        return DataLoader(range(40), 2, shuffle=True, num_workers=processes, prefetch_factor=4)

    first = ShardedLoader(make(), rank=0, size=1, seed=0, observer=NoObserver())
    run, used = iter(first), []
    for _ in range(3):
        used += next(run).tolist()
        first._open[0].trained = True
    standing = first.standing()
    run.close()
    again = ShardedLoader(make(), rank=0, size=1, seed=0, observer=NoObserver(), standing=standing)
    used += [sample for batch in again for sample in batch.tolist()]
    assert sorted(used) == list(range(40))
    assert used[:6] == [
        sample
        for batch in list(islice(ShardedLoader(make(), rank=0, size=1, seed=0, observer=NoObserver()), 3))
        for sample in batch.tolist()
    ]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3))
def test_who_was_dealt_ahead_and_who_was_not_come_to_the_same(workers: int, batch: int, ahead: int, before: int):
    """One worker was dealt some steps more than the others, and keeps its part of them; the others take that out."""
    group = workers * batch
    common = RemainingSamples(before * group)
    taken, mine = common.take(ahead * group)
    kept = [(begin + n * group, begin + n * group + batch) for begin, _ in taken for n in range(ahead)]
    rest = [(p, p + 1) for begin, end in taken for p in range(begin, end) if not any(a <= p < b for a, b in kept)]
    assert mine.give_back(rest) == common.take_out(kept)
    assert common.take_out(kept).take_out(kept) == common.take_out(kept)
