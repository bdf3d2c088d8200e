"""A batch is a function of (seed, epoch, pass, indices), whichever process prepares it and whatever was before."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from shoal.data.tier.preparing import BatchPreparer, SampleError, plain_indices
from shoal.data.tier.raising import is_equal
from shoal.data.turn import PassKey

KEY = PassKey(3, 1, 0)


class Noisy(Dataset[torch.Tensor]):
    """Draws from all three global generators."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9:
            raise KeyError("nine")
        return torch.tensor([index, torch.rand(()).item(), random.random(), np.random.rand()])


def preparer(**settings: object) -> BatchPreparer:
    return BatchPreparer(DataLoader(Noisy(), **{"batch_size": 2, **settings}))  # type: ignore[arg-type]


def test_a_sample_does_not_depend_on_its_batch_nor_on_what_was_before() -> None:
    one, other = preparer(), preparer()
    other.prepare(KEY, [5, 6])
    torch.rand(7)
    assert is_equal(one.prepare(KEY, [1, 2])[1], other.prepare(KEY, [2, 8])[0])


def test_another_epoch_pass_or_seed_draws_other_numbers() -> None:
    drawn = [preparer().prepare(key, [1]) for key in (KEY, PassKey(3, 2, 0), PassKey(3, 1, 1), PassKey(4, 1, 0))]
    assert len({float(batch[0, 1]) for batch in drawn}) == len({float(batch[0, 3]) for batch in drawn}) == 4


def test_the_process_keeps_its_own_random_numbers() -> None:
    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(1), random.random()
    torch.manual_seed(1)
    random.seed(1)
    preparer(worker_init_fn=lambda number: torch.manual_seed(5)).prepare(KEY, [1, 2])
    assert (torch.rand(1), random.random()) == expected


def test_collate_fn_draws_by_the_indices_of_the_batch() -> None:
    def shuffle(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.rand(1)

    first, again, other = (preparer(collate_fn=shuffle).prepare(KEY, indices) for indices in ([1, 2], [1, 2], [2, 1]))
    assert first == again != other


def test_worker_init_fn_is_called_once_with_the_number_of_the_process() -> None:
    called: list[int] = []
    loader = DataLoader(Noisy(), batch_size=2, worker_init_fn=called.append)
    prepared = BatchPreparer(loader, 4)
    prepared.prepare(KEY, [1])
    prepared.prepare(KEY, [2])
    assert called == [4]


def test_without_batches_an_index_is_one_batch() -> None:
    assert preparer(batch_size=None).prepare(KEY, 3)[0] == 3


def test_a_dataset_may_fetch_a_batch_at_once() -> None:
    class Whole(Noisy):
        def __getitems__(self, indices: list[int]) -> list[float]:
            return [index + float(torch.rand(())) for index in indices]

    one, other = (BatchPreparer(DataLoader(Whole(), batch_size=2)).prepare(KEY, [4, 5]) for _ in range(2))
    assert torch.equal(one, other)


def test_an_error_names_the_sample() -> None:
    with pytest.raises(SampleError) as caught:
        preparer().prepare(KEY, [1, 9])
    assert caught.value.sample == "9"
    assert isinstance(caught.value.__cause__, KeyError)


def test_indices_become_plain_numbers() -> None:
    assert plain_indices([np.int64(3), torch.tensor(4), (5, "a"), True]) == [3, 4, (5, "a"), True]
    assert [type(index) for index in plain_indices([np.int64(3), torch.tensor(4)])] == [int, int]
