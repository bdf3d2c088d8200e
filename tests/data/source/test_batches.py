"""Iterables that are no `DataLoader`: whole items are dealt."""

import random

import pytest
from torch.utils.data import DataLoader


class Shuffling:
    def __iter__(self):
        items = list(range(7))
        random.shuffle(items)
        return iter(items)


class Doubling(DataLoader):
    def __iter__(self):
        return (batch.tolist() * 2 for batch in super().__iter__())


def test_a_list_goes_round(crew):
    together = crew(lambda: ["a", "b", "c", "d", "e"], 3)
    assert together.run() == [["a", "d"], ["b", "e"], ["c"]]
    assert [len(loader) for loader in together.loaders] == [2, 2, 2]
    assert together.watches[2].counts == [(1, 1, 1), (1, 1, 0)]
    assert together.watches[2].calls[-3:] == ["short", "began", "exhausted"]


def test_a_shuffling_iterable_is_the_same_everywhere(crew):
    together = crew(Shuffling, 2)
    first, second = together.run(0), together.run(1)
    assert sorted(first[0] + first[1]) == list(range(7))
    assert first != second
    with pytest.raises(TypeError):
        len(together.loaders[0])


def test_a_loader_with_an_iteration_of_its_own_keeps_it(crew):
    together = crew(lambda: Doubling(range(6), 1, shuffle=True), 2)
    one, two = together.run()
    assert all(batch[0] == batch[1] for batch in one + two)
    assert sorted(batch[0] for batch in one + two) == list(range(6))
