"""Map-style loaders: samplers, batch samplers, and dataloader processes."""

from itertools import chain

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # Python >= 3.12
PROCESSES = {"num_workers": 2, "multiprocessing_context": "fork"}
chosen = 0


class Noisy(torch.utils.data.Dataset):
    """Augments: every sample is its index and something random."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index + torch.rand(()) / 2


def choose_seven(_worker):
    global chosen
    chosen = 7


class Told(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return chosen


@pytest.mark.parametrize(
    "make",
    [
        lambda: SubsetRandomSampler([3, 5, 7, 9, 11, 13, 15]),
        lambda: WeightedRandomSampler([1.0] * 19, 11, generator=torch.Generator()),
        lambda: RandomSampler(range(19), replacement=True, num_samples=40),
        lambda: RandomSampler(range(19), num_samples=5, generator=torch.Generator()),
        lambda: [4, 4, 1],
    ],
)
def test_custom_samplers_are_dealt_like_a_larger_batch(crew, make):
    together = crew(lambda: DataLoader(range(19), 2, sampler=make()), 3)
    alone = crew(lambda: DataLoader(range(19), 6, sampler=make()), 1)
    steps = together.steps()
    assert steps == alone.steps()
    assert sum(map(len, steps)) == len(make())
    assert [len(loader) for loader in together.loaders] == [len(steps)] * 3


def test_a_shuffling_sampler_differs_by_epoch(crew):
    together = crew(lambda: DataLoader(range(9), 2, sampler=SubsetRandomSampler(range(9))), 2)
    assert together.run(0) != together.run(1)


def test_an_endless_sampler_is_read_as_needed(crew):
    def forever():
        while True:
            yield from range(6)

    first, second = crew(lambda: DataLoader(range(6), 2, sampler=forever()), 2).loaders
    passes = zip(first, second, range(3), strict=False)
    assert [x.tolist() + y.tolist() for x, y, _ in passes] == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5]]


def test_batches_of_a_batch_sampler_go_round(crew):
    batches = [[0, 1, 2], [3], [4, 5], [6, 7], [8, 9, 1]]
    together = crew(lambda: DataLoader(range(10), batch_sampler=batches), 3)
    assert together.run() == [[[0, 1, 2], [6, 7]], [[3], [8, 9, 1]], [[4, 5]]]
    assert together.watches[2].counts == [(3, 1, 2), (2, 3, 0)]
    assert [len(loader) for loader in together.loaders] == [2, 2, 2]


def test_an_empty_batch_is_a_short_step_in_the_middle(crew):
    together = crew(lambda: DataLoader(range(10), batch_sampler=[(0,), (), (1,), (2, 3)]), 2)
    assert together.run()[1] == [[2, 3]]
    assert together.watches[1].counts == [(1, 0), (1, 2)]
    assert together.watches[1].calls == ["began", "short", "began", "ended", "began", "exhausted"]


def test_a_shuffling_batch_sampler_agrees(crew):
    def make():
        return DataLoader(range(10), batch_sampler=BatchSampler(RandomSampler(range(10)), 2, False))

    assert sorted(chain.from_iterable(crew(make, 3).steps())) == list(range(10))


def test_without_batches_each_sample_goes_alone(crew):
    together = crew(lambda: DataLoader(range(5), batch_size=None), 2)
    assert together.run() == [[0, 2, 4], [1, 3]]
    assert together.watches[1].counts == [(1, 1), (1, 1), (1, 0)]


def test_lists_from_a_sampler_are_fetched_at_once_and_counted(crew):
    indices = BatchSampler(SequentialSampler(range(5)), 2, False)
    together = crew(lambda: DataLoader(torch.arange(5), batch_size=None, sampler=indices), 2)
    assert together.run() == [[[0, 1], [4]], [[2, 3]]]
    assert together.watches[0].counts == [(2, 2), (1, 0)]


def test_collate_function_is_the_users(crew):
    together = crew(lambda: DataLoader(range(4), 2, collate_fn=sum), 2)
    assert together.run() == [[1], [5]]


def test_dataloader_processes_change_nothing_about_the_order(crew):
    def make(**processes):
        return crew(lambda: DataLoader(range(11), 2, shuffle=True, **processes), 2)

    assert make(**PROCESSES).steps() == make().steps()


def test_persistent_processes_are_given_each_epochs_order(crew):
    def make(**processes):
        return crew(lambda: DataLoader(range(11), 2, shuffle=True, **processes), 2)

    lasting, plain = make(**PROCESSES, persistent_workers=True, prefetch_factor=1), make()
    for _ in lasting.loaders[0]:
        break
    for _ in plain.loaders[0]:
        break
    assert [lasting.run(epoch) for epoch in (0, 1)] == [plain.run(epoch) for epoch in (0, 1)]


def test_augmentation_is_reproducible_and_differs_by_rank(crew):
    # Both ranks load the same samples here, so that only their noise can tell them apart.
    def noise():
        batches = [list(range(8))] * 2
        return crew(lambda: DataLoader(Noisy(), batch_sampler=batches, **PROCESSES), 2).run()

    before = torch.get_rng_state()
    first = noise()
    assert first == noise()
    assert first[0] != first[1]
    assert torch.equal(before, torch.get_rng_state())


def test_worker_init_fn_is_called(crew):
    together = crew(lambda: DataLoader(Told(), 2, worker_init_fn=choose_seven, **PROCESSES), 1)
    assert together.run() == [[[7, 7], [7, 7]]]
