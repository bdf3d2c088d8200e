"""The algorithms themselves run in virtual time, every message one moment long; what they did is counted."""

import heapq
from collections import Counter
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from shoal.sync.engine.algorithms.base import DtypeArithmetic, SumTask
from shoal.sync.engine.links import choose_algorithm
from shoal.sync.sum_cost import SumCost, sum_cost
from shoal.transport.messages import ChunkHeader, FramePayload, pack
from shoal.transport.tasks import MeshView

NUMBERS = 840
"""Divisible by every number of workers below, and one piece."""


class CountedArray(np.ndarray[Any, Any]):
    """Counts the numbers that are added into it, by its owner."""

    counts: Counter[int]
    owner: int

    def __array_finalize__(self, made_from: Any) -> None:
        self.counts, self.owner = getattr(made_from, "counts", Counter()), getattr(made_from, "owner", -1)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        plain = [np.asarray(each) for each in inputs]
        self.counts[self.owner] += plain[0].size if ufunc is np.add else 0
        return getattr(ufunc, method)(*plain, out=tuple(np.asarray(each) for each in out) or None, **options)


def run(way: str, workers: int, numbers: int = NUMBERS) -> SumCost:
    """Let all workers sum; every one must come to the sum."""
    sent, added, order = Counter[int](), Counter[int](), count()
    queue: list[tuple[int, int, int, int, ChunkHeader, FramePayload]] = []
    moment, arithmetic = 0, DtypeArithmetic(torch.float32)
    tasks: list[SumTask] = []

    def counted(values: np.ndarray[Any, Any], owner: int) -> CountedArray:
        array = values.view(CountedArray)
        array.counts, array.owner = added, owner
        return array

    for rank in range(workers):
        leaving = counted(np.full(numbers, rank + 1.0, np.float32), rank)
        kind = choose_algorithm(torch.empty(numbers), workers, way)
        tasks.append(kind(leaving, counted(np.zeros(numbers, np.float32), rank), arithmetic))

    def sender(rank: int) -> Any:
        def send(peer: int, phase: int, index: int, payload: FramePayload) -> None:
            sent[rank] += payload.size
            copy = pack(np.array(payload.array), payload.dtype)  # as on a link: the receiver may write into it
            facts = {"dtype": copy.dtype, "shape": copy.shape, "crc": copy.crc, "kind": tasks[rank].kind}
            numbers = {"channel": 0, "task": 0, "phase": phase, "index": index, "total": copy.size, "stamp": 0}
            head = ChunkHeader("run", 1, 0, rank, 0, **numbers, **facts)
            heapq.heappush(queue, (moment + 1, next(order), peer, rank, head, copy))

        return send

    for rank, task in enumerate(tasks):
        task.begin(MeshView(range(workers), rank), sender(rank))
    while queue:
        moment, _, peer, rank, head, payload = heapq.heappop(queue)
        tasks[peer].arrived(rank, head, payload)
    for task in tasks:
        assert task.done.is_set()
        assert (np.asarray(task.result) == workers * (workers + 1) / 2).all()
    return SumCost(max(sent.values()), moment, max(added.values()))


WAYS = ("auto", "ring", "owners", "straight", "tree", "chain", "star", "butterfly", "0-1:1-2")


@pytest.mark.parametrize("way", WAYS)
def test_work_depth_and_bytes_are_what_the_algorithms_do(way: str) -> None:
    for workers in range(2, 9):
        assert run(way, workers) == sum_cost(way, NUMBERS, workers), workers


def test_many_numbers_take_the_ring_and_few_go_straight() -> None:
    assert sum_cost("auto", 10**6, 8) == sum_cost("ring", 10**6, 8)
    assert sum_cost("auto", 10**5, 8) == sum_cost("owners", 10**5, 8)
    assert sum_cost("auto", 100, 8) == sum_cost("straight", 100, 8)
    assert sum_cost("ring", 10**6, 8, element=2).depth == 2, "half precision is rounded once, by owners"


def test_one_worker_sends_and_adds_nothing() -> None:
    assert sum_cost("tree", 10**6, 1) == SumCost(0, 0, 0)
