"""Fingerprints of data: equal for equal data, different for different data, and without side effects."""

import random
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from shoal.models.fingerprint import fingerprint_data


class Listed(Dataset[Any]):
    def __init__(self, items: list[Any], noise: bool = False) -> None:
        self.items, self.noise = items, noise

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        return self.items[place] + (random.random() if self.noise else 0)


def test_equal_data_have_equal_ones() -> None:
    x = torch.arange(12.0).view(4, 3)
    same, other = TensorDataset(x.clone(), x[:, 0]), TensorDataset(x + 1, x[:, 0])
    assert fingerprint_data(TensorDataset(x, x[:, 0])) == fingerprint_data(same) != fingerprint_data(other)
    assert fingerprint_data(same).startswith("tensors:")


def test_large_tensors_are_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.models.fingerprint.WHOLE", 100)
    x = torch.zeros(5000, 2)
    before = fingerprint_data(TensorDataset(x))
    x[0] = 1
    assert fingerprint_data(TensorDataset(x)) != before != fingerprint_data(TensorDataset(x[:-1]))


def test_other_data_sets_are_sampled() -> None:
    one = fingerprint_data(Listed([1.0, 2.0, 3.0]))
    assert one.startswith("samples:")
    assert one == fingerprint_data(Listed([1.0, 2.0, 3.0])) != fingerprint_data(Listed([1.0, 2.0, 4.0]))


def test_augmented_data_are_known_by_their_size_and_draw_no_random_numbers() -> None:
    random.seed(1)
    before = random.getstate()
    assert fingerprint_data(Listed([1.0] * 3, noise=True)).startswith("size:")
    assert random.getstate() == before


@pytest.mark.parametrize("data", [iter(()), object(), []])
def test_what_has_no_length_is_known_by_its_kind(data: object) -> None:
    assert fingerprint_data(data).startswith("kind:")


def test_data_that_cannot_be_read_do_no_harm() -> None:
    assert fingerprint_data(Listed(["text", "more"])).startswith("size:")
