"""Iterable-style loaders: the same stream everywhere, each worker keeping its part."""

import random
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # Python >= 3.12
PROCESSES = {"num_workers": 2, "multiprocessing_context": "fork"}


class Stream(IterableDataset):
    """`size` samples, divided between dataloader processes as torch's documentation does it."""

    def __init__(self, size, shuffle=False):
        self.size = size
        self.shuffle = shuffle
        self.first, self.stride = 0, 1

    def __iter__(self):
        items = list(range(self.first, self.size, self.stride))
        if self.shuffle:
            random.shuffle(items)
        return iter(items)


class Sized(Stream):
    def __len__(self):
        return self.size


class Hopping(IterableDataset):
    """Keeps a generator of its own, divides by `get_worker_info` and draws while it goes."""

    def __init__(self):
        self.generator = torch.Generator()

    def __iter__(self):
        info = get_worker_info()
        items = torch.randperm(12, generator=self.generator).tolist()
        for item in items[info.id :: info.num_workers] if info else items:
            yield item + 100 * random.randrange(50)


def divide(_worker):
    info = get_worker_info()
    info.dataset.first, info.dataset.stride = info.id, info.num_workers


def noisy(samples):
    """Draws a number of times that depends on the samples, so the workers' own generators part."""
    random.choices(range(9), k=sum(samples) % 7)
    return list(samples)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("total", [1, 6, 7, 17])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_is_dealt_like_a_larger_batch(crew, total, shuffle, drop_last):
    def make(batch, size):
        return crew(lambda: DataLoader(Sized(total, shuffle), batch, drop_last=drop_last), size)

    together = make(2, 3)
    steps = together.steps()
    assert steps == make(6, 1).steps()
    assert sorted(chain.from_iterable(steps)) == list(range(total)) or drop_last
    assert [len(x) for x in together.loaders] == [len(steps)] * 3


def test_remainder_and_short_worker(crew):
    together = crew(lambda: DataLoader(Stream(8), 2), 3)
    assert together.run() == [[[0, 1], [6]], [[2, 3], [7]], [[4, 5]]]
    assert together.watches[2].counts == [(2, 2, 2), (1, 1, 0)]
    with pytest.raises(TypeError):
        len(together.loaders[0])


def test_without_batches_each_sample_goes_alone(crew):
    together = crew(lambda: DataLoader(Stream(5), batch_size=None), 2)
    assert together.run() == [[0, 2, 4], [1, 3]]
    assert together.watches[1].counts == [(1, 1), (1, 1), (1, 0)]


@pytest.mark.parametrize("processes", [{}, PROCESSES])
def test_streams_agree_although_the_workers_draw_differently(crew, processes):
    def make(batch, size):
        return crew(lambda: DataLoader(Hopping(), batch, collate_fn=noisy, **processes), size)

    together = make(1, 3)
    steps = together.steps()
    assert steps == make(3, 1).steps()
    assert sorted(sample % 100 for step in steps for sample in step) == list(range(12))
    assert together.run(1) != together.run(2)


def test_script_generators_are_left_alone(crew):
    before = random.getstate(), torch.get_rng_state()
    crew(lambda: DataLoader(Stream(9, shuffle=True), 2), 2).run()
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())


def test_persistent_processes_shuffle_anew_like_brief_ones(crew):
    def make(lasting):
        how = {"collate_fn": noisy, "persistent_workers": lasting, **PROCESSES}
        return crew(lambda: DataLoader(Hopping(), 2, **how), 3)

    brief, lasting = make(False), make(True)
    first = brief.run(0)
    assert [lasting.run(0), lasting.run(1)] == [first, brief.run(1)]
    assert first != brief.run(1)


def test_dataloader_processes_see_their_own_dataset_and_group_by_themselves(crew):
    def make(batch, size):
        return crew(lambda: DataLoader(Stream(14), batch, worker_init_fn=divide, **PROCESSES), size)

    steps = make(2, 2).steps()
    assert steps == make(4, 1).steps()
    assert steps == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12], [9, 11, 13]]
