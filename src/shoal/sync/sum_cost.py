"""What a sum over links costs by each word of `allreduce(…)`: bytes, depth and work, as arithmetic without torch.

    sent     bytes of the worker that sends most
    depth    messages of which each waits for the one before; one of them is a latency
    added    numbers that the worker with most work adds up

Work and depth as Ben-Nun & Hoefler count them, "Demystifying Parallel and Distributed Deep Learning: An In-Depth
Concurrency Analysis", ACM Computing Surveys 2019. The algorithms themselves are in `engine/algorithms/`;
`tests/sync/test_sum_cost.py` lets them run and counts. Not for one host: its memory carries no message.
"""

from collections import Counter
from dataclasses import dataclass

from shoal.core.tree_edges import read_edges, tree_over

EXTRA = 16 << 10
"""Bytes a worker may send more than it must to save a latency: a millisecond at 100 Mbit/s."""
MIDDLE = 1 << 20
"""The most bytes that go through reduce-scatter and all-gather, if the ring can take them at all."""
ROUNDING = ("ring", "tree", "chain", "star", "butterfly")
"""Ways that pass partial sums on, and so would round half precision several times."""
HALF = 2
"""Bytes of an element of half precision."""


@dataclass(frozen=True)
class SumCost:
    """Of one sum of all workers."""

    sent: int
    depth: int
    added: int


def choose_way(size: int, element: int, workers: int, wanted: str = "auto") -> str:
    """Return how `size` bytes are summed: a word of `allreduce(…)`, or edges. `element`: bytes of one number."""
    if wanted != "auto":
        # edges begin with a digit, and are a tree
        rounds = wanted in ROUNDING or wanted[:1].isdigit()
        return "owners" if rounds and element == HALF else wanted
    # what a direct sum sends more than 2 (p-1)/p of the bytes
    if size * (workers - 1) * (workers - 2) // workers <= EXTRA:
        return "straight"
    return "owners" if size <= MIDDLE or element == HALF else "ring"


def sum_cost(wanted: str, numbers: int, workers: int, element: int = 4) -> SumCost:
    """Return what a sum of `numbers` elements costs; nothing where a worker is alone."""
    if workers == 1 or not numbers:
        return SumCost(0, 0, 0)
    size, others = numbers * element, workers - 1
    way = choose_way(size, element, workers, wanted)
    if way == "straight":
        return SumCost(others * size, 1, others * numbers)
    if way in ("ring", "owners"):
        depth = 2 * others if way == "ring" else 2
        return SumCost(2 * others * size // workers, depth, others * numbers // workers)
    if way == "butterfly":
        times = workers.bit_length() - 1 + (workers.bit_count() > 1)
        return SumCost(times * size, _butterfly_depth(workers), times * numbers)
    parents = find_parents(way, workers)
    children = Counter(parent for parent in parents.values() if parent is not None)
    arrays = max(children[place] + (parent is not None) for place, parent in parents.items())
    return SumCost(arrays * size, 2 * _height(parents), max(children.values()) * numbers)


def _butterfly_depth(workers: int) -> int:
    """Beyond a power of two, workers hand theirs to a partner first, who begins later, and get the total last."""
    rounds = workers.bit_length() - 1
    core = 1 << rounds
    is_late = [place + core < workers for place in range(core)]
    ready = [int(late) for late in is_late]
    for bit in range(rounds):
        ready = [max(mine, ready[place ^ (1 << bit)] + 1) for place, mine in enumerate(ready)]
    return max(each + late for each, late in zip(ready, is_late, strict=True))


def find_parents(way: str, workers: int) -> dict[int, int | None]:
    """Return where the partial sums of each place go, along a tree; None for the root, which comes first."""
    if way[:1].isdigit():
        return tree_over(read_edges(way), range(workers))
    parents = {"tree": [(place - 1) // 2 for place in range(1, workers)], "chain": range(workers - 1)}
    return {0: None} | dict(enumerate(parents.get(way, [0] * (workers - 1)), start=1))


def _height(parents: dict[int, int | None]) -> int:
    heights: dict[int, int] = {}
    for place, parent in parents.items():
        heights[place] = 0 if parent is None else 1 + heights[parent]
    return max(heights.values())
