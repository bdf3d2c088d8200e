"""What a run has left to send: the steps to come times the bytes of a step."""

import math
from types import SimpleNamespace

import pytest
import torch

from shoal.train.link_priority import NO_LENGTH, RunPriority


def priority_of(
    declared: int = 0, done: int = 0, sent: int = 0, epochs: int = 0, loader: int = 0
) -> tuple[RunPriority, SimpleNamespace]:
    progress = SimpleNamespace(step=done, sent_bytes=sent)
    passes = SimpleNamespace(number=epochs, loaders=[range(loader)] if loader else [])
    joined = [SimpleNamespace(members=SimpleNamespace(parameters=list(torch.nn.Linear(9, 1).parameters())))]
    return RunPriority(declared, progress, passes, joined), progress


@pytest.mark.parametrize(
    ("known", "left"),
    [
        ({"epochs": 2, "loader": 5}, 10 * 40),
        ({"epochs": 2, "loader": 5, "done": 4, "sent": 400}, 6 * 100),
        ({"declared": 3}, 3 * 40),
        ({"declared": 3, "done": 5, "sent": 50}, 0),
        ({"loader": 5}, math.inf),
        ({"epochs": 5}, math.inf),
        ({}, math.inf),
    ],
)
def test_what_is_left(known: dict[str, int], left: float) -> None:
    assert priority_of(**known)[0].count_left() == left


def test_a_run_of_unknown_length_says_so_once() -> None:
    priority, progress = priority_of()
    assert priority.tell() is None, "the loop has not begun"
    progress.step = 1
    assert priority.tell().text == NO_LENGTH
    assert priority.tell() is None
    assert priority_of(declared=3, done=1)[0].tell() is None
